"""No technique claims what it does not do: bytes of saved folders and exports, and products of exported graphs."""

from functools import cache

import pytest

from compress.artifact.artifact import Artifact
from compress.engine.steps import run
from compress.export import export_onnx
from compress.export.check.verification import verify
from compress.recipe import Recipe
from compress.registry import get, names
from eval.cost.size import file_bytes, onnx_size
from tests.conformance.battery import REFUSED, inputs_for, instance, task_of
from tests.tiny import tiny_taskmodel

NO_EXPORT = {"quantize.bitsandbytes": "runs in torch alone"}
LARGE = {"hidden_size": 64, "intermediate_size": 256, "vocab_size": 2000}
"""Large enough that what a graph holds beside its weights does not hide what happens to them."""


@cache
def measured(name, spec, folder, signals):
    """Return the bytes of the saved folder, the bytes of the export and its products, after a technique or none."""
    result = Artifact.from_model(tiny_taskmodel("bert", spec, **LARGE))
    if name:
        inputs = inputs_for(task_of(name), result, signals)
        result = run(Recipe(steps=(instance(name),)), result, inputs, rehearse=False)
    where = folder / f"{name}-{spec.kind}"
    result.save(where / "saved")
    if name in NO_EXPORT:
        return file_bytes(where / "saved"), None, None
    report = export_onnx(result, where / "onnx", examples=task_of(name).validation, agreement=0.0)
    return file_bytes(where / "saved"), report.bytes, onnx_size(where / "onnx" / "model.onnx").macs


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


@pytest.mark.parametrize("name", [name for name in names() if "bert" not in REFUSED.get(name, ())])
def test_what_is_claimed_is_what_happens(name, folder, signals):
    technique = get(name)
    before, after = (measured(step, task_of(name).spec, folder, signals) for step in ("", name))
    for measure, old, new in zip(("bytes", "export_bytes", "macs"), before, after, strict=True):
        if new is None:
            assert measure not in technique.reduces, NO_EXPORT[name]
        elif measure in technique.reduces:
            assert new < 0.99 * old, f"{name} claims to reduce {measure}"
        elif measure not in technique.adds:
            assert 0.99 * old <= new <= 1.01 * old, f"{name} changes {measure} and does not say so"
