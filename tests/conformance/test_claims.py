"""No technique claims what it does not do: bytes of saved folders and exports, and products of exported graphs."""

from functools import cache

import pytest

from compress.artifact.artifact import Artifact
from compress.export.check.verification import verify
from compress.registry import get, names
from compress.testing.claims import LARGE, check_claims, sizes_on_disk
from tests.conformance.battery import REFUSED, case, task_of
from tests.tiny import at_first, tiny_taskmodel

NO_EXPORT = {"quantize.bitsandbytes": "runs in torch alone"}

QUICK = [name for name in names() if get(name).reduces | get(name).adds or name == "distill.logits"]
"""Those that the default tests run: all that change a size, and one that only trains."""


@cache
def measured(name, spec, folder, signals):
    """Return the sizes on disk after a technique or none."""
    made = (
        case(name, "bert", signals, **LARGE).result
        if name
        else Artifact.from_model(tiny_taskmodel("bert", spec, **LARGE))
    )
    return sizes_on_disk(made, task_of(name), folder / f"{name}-{spec.kind}", exports=name not in NO_EXPORT)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name in names() if "bert" not in REFUSED.get(name, ()) and name not in NO_EXPORT]
)
def test_every_runtime_answers_alike_after_it(name, folder, signals):
    measured(name, task_of(name).spec, folder, signals)
    found = verify(folder / f"{name}-{task_of(name).spec.kind}" / "onnx")
    assert {each.runtime for each in found if each.ran} >= {"ONNX Runtime", "onnx's reference"}
    assert [each for each in found if each.ran and not each.passed] == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("claims")


@pytest.mark.parametrize("name", at_first([name for name in names() if "bert" not in REFUSED.get(name, ())], *QUICK))
def test_what_is_claimed_is_what_happens(name, folder, signals):
    before, after = (measured(step, task_of(name).spec, folder, signals) for step in ("", name))
    assert (len(after) == 1) == (name in NO_EXPORT)
    check_claims(get(name), before, after)
