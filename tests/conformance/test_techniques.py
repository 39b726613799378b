"""One battery over every technique and every family; a new technique is picked up by its line in the list."""

from importlib import import_module

import numpy as np
import pytest

from compress.registry import TECHNIQUES, get, names
from compress.testing.checks import checks_for, family_checks_for, is_refused, trains_in_bf16
from compress.testing.reloading import TOLERANCE, outputs_in_a_fresh_process, outputs_of, save_case
from tests.conformance.battery import REFUSED, case
from tests.tiny import FAMILIES, at_first


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


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", names())
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


@pytest.fixture(scope="module")
def reloaded(signals, tmp_path_factory):
    """Save the result of every technique on every family, and load all of them in one fresh process."""
    root = tmp_path_factory.mktemp("saved")
    cases = {
        f"{name}-{family}": case(name, family, signals)
        for name in names()
        for family in FAMILIES
        if family not in REFUSED.get(name, ())
    }
    for key, one in cases.items():
        save_case(one, root / key)
    own = {key: outputs_of(one.result, one) for key, one in cases.items()}
    return own, outputs_in_a_fresh_process(root, cases)


@pytest.mark.parametrize("name", names())
def test_saved_results_reload_in_a_fresh_process(name, reloaded):
    own, loaded = reloaded
    for family in FAMILIES:
        key = f"{name}-{family}"
        if family in REFUSED.get(name, ()):
            assert key not in loaded
            continue
        assert np.allclose(own[key], loaded[key], atol=TOLERANCE), key
