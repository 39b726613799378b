"""The battery over the family whose tokens see a window: every technique, most of them among the slow tests."""

import numpy as np
import pytest

from compress.registry import names
from compress.testing.reloading import TOLERANCE, outputs_in_a_fresh_process, outputs_of, save_case
from compress.testing.technique_checks import family_checks_for, is_refused, trains_in_bf16
from tests.conformance.battery import OTHER_TASK, REFUSED, case

FAMILY = "longformer"
REFUSED_HERE = {
    *OTHER_TASK,
    *(name for name, families in REFUSED.items() if FAMILY in families),
}
QUICK = ("prune.heads", "distill.logits", *REFUSED_HERE)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in names()]
)
def test_a_step(name, signals):
    one = case(name, FAMILY, signals)
    if name in REFUSED_HERE:
        is_refused(one)
        return
    for check in family_checks_for(one.technique):
        if check is not trains_in_bf16:
            check(one)


@pytest.mark.slow
def test_results_reload_in_a_fresh_process(signals, tmp_path):
    cases = {name: case(name, FAMILY, signals) for name in names() if name not in REFUSED_HERE}
    for name, one in cases.items():
        save_case(one, tmp_path / name)
    own = {name: outputs_of(one.result, one) for name, one in cases.items()}
    loaded = outputs_in_a_fresh_process(tmp_path, cases)
    for name, outputs in own.items():
        assert np.allclose(outputs, loaded[name], atol=TOLERANCE), name
