"""Holm's correction: worked by hand, and against the rule of rejecting one hypothesis after the other."""

import numpy as np
import pytest

from eval.errors import UserError
from eval.proof.many_comparisons import holm


def test_worked_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_it_rejects_what_the_sequential_rule_rejects():
    chance = np.random.default_rng(13)
    for _ in range(200):
        given = (chance.random(6) ** 3).tolist()
        rejected, order = set(), sorted(range(6), key=given.__getitem__)
        for step, place in enumerate(order):
            if given[place] > 0.05 / (6 - step):
                break
            rejected.add(place)
        assert {place for place, value in enumerate(holm(given)) if value <= 0.05} == rejected


def test_what_is_no_p_value():
    with pytest.raises(UserError) as caught:
        holm([0.5, -0.1, 1.5])
    assert len(caught.value.problems) == 2
