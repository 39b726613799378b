"""One battery over every technique and every family; a new technique is picked up by its line in the list."""

from importlib import import_module

import numpy as np
import pytest

from compress.registry import TECHNIQUES, get, names
from compress.testing.reloading import TOLERANCE, outputs_in_a_fresh_process, outputs_of, save_case
from compress.testing.technique_checks import checks_for, family_checks_for, is_refused, trains_in_bf16
from tests.conformance.battery import REFUSED, case
from tests.tiny import FAMILIES, at_first

SHARE = len(FAMILIES)
"""By default a technique runs on BERT and, each in its turn, on one family of so many; slow tests run the others."""


def is_late(name, family):
    """Whether a technique on a family is left to the slow tests; those refused never are."""
    turn = names().index(name) + FAMILIES.index(family)
    return family != "bert" and family not in REFUSED.get(name, ()) and turn % SHARE > 0


STEPS = [
    pytest.param(name, family, marks=pytest.mark.slow if is_late(name, family) else ())
    for name in names()
    for family in FAMILIES
]


@pytest.mark.parametrize("name", names())
def test_the_class_is_where_its_name_says(name):
    module, _, cls = TECHNIQUES[name].partition(":")
    assert getattr(import_module(module), cls).name == name
    assert module == f"compress.{name}"


@pytest.mark.parametrize("name", names())
def test_a_technique_by_itself(name, signals):
    one = case(name, "bert", signals)
    for check in checks_for(one.technique):
        check(one)


@pytest.mark.parametrize(("name", "family"), STEPS)
def test_a_step_on_a_family(name, family, signals):
    one = case(name, family, signals)
    if family in REFUSED.get(name, ()):
        is_refused(one)
        return
    for check in family_checks_for(one.technique):
        if check is not trains_in_bf16:
            check(one)


@pytest.mark.parametrize("family", at_first(FAMILIES, "bert"))
@pytest.mark.parametrize("name", [name for name in names() if get(name).trains])
def test_a_step_trains_in_bf16_and_leaves_float32(name, family, signals):
    if family in REFUSED.get(name, ()):
        return
    trains_in_bf16(case(name, family, signals))


@pytest.fixture(scope="module", params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["default", "late"])
def reloaded(request, signals, tmp_path_factory):
    """Save the result of every technique on its families, and load all of them in one fresh process."""
    root = tmp_path_factory.mktemp("saved")
    cases = {
        f"{name}-{family}": case(name, family, signals)
        for name in names()
        for family in FAMILIES
        if family not in REFUSED.get(name, ()) and is_late(name, family) == request.param
    }
    for key, one in cases.items():
        save_case(one, root / key)
    own = {key: outputs_of(one.result, one) for key, one in cases.items()}
    return own, outputs_in_a_fresh_process(root, cases)


@pytest.mark.parametrize("name", names())
def test_saved_results_reload_in_a_fresh_process(name, reloaded):
    own, loaded = reloaded
    assert own.keys() == loaded.keys()
    keys = [key for key in own if key.startswith(f"{name}-")]
    assert keys or "bert" in REFUSED.get(name, ()) or "prune.layers-bert" not in own
    for key in keys:
        assert np.allclose(own[key], loaded[key], atol=TOLERANCE), key
