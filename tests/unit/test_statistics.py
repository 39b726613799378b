"""Paired statistics against hand counts and known values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from eval.errors import UserError
from eval.proof.paired_statistics import (
    Interval,
    agreement,
    expected_calibration_error,
    mcnemar,
    non_inferior,
    paired_bootstrap,
)
from eval.proof.score_interval import score_interval


def mean_of(values):
    array = np.asarray(values, dtype=np.float64)
    return lambda indices: float(array[indices].mean())


def test_paired_bootstrap_of_equal_models_is_exactly_zero():
    right = np.random.default_rng(0).integers(0, 2, 200)
    found = paired_bootstrap([(mean_of(right), mean_of(right))], 200)
    assert found.difference == Interval(0.0, 0.0, 0.0)
    assert found.retention == Interval(1.0, 1.0, 1.0)
    assert found.p_value == 1.0


def test_paired_bootstrap_agrees_with_the_normal_approximation():
    generator = np.random.default_rng(1)
    reference = generator.normal(0.8, 0.1, 400)
    candidate = reference + generator.normal(0.02, 0.05, 400)
    found = paired_bootstrap([(mean_of(candidate), mean_of(reference))], 400, resamples=4000)
    gaps = candidate - reference
    error = 1.96 * gaps.std(ddof=1) / math.sqrt(400)
    assert found.difference.value == pytest.approx(gaps.mean())
    assert found.difference.low == pytest.approx(gaps.mean() - error, abs=0.0006)
    assert found.difference.high == pytest.approx(gaps.mean() + error, abs=0.0006)
    assert found.retention.value == pytest.approx(candidate.mean() / reference.mean())
    assert found.p_value == pytest.approx(1 / 4001)


def test_pairing_is_sharper_than_two_separate_intervals():
    generator = np.random.default_rng(2)
    reference = (generator.random(500) < 0.8).astype(float)
    candidate = reference.copy()
    candidate[:5] = 1 - candidate[:5]
    other = reference[generator.permutation(500)]
    paired = paired_bootstrap([(mean_of(candidate), mean_of(reference))], 500).difference
    unpaired = paired_bootstrap([(mean_of(candidate), mean_of(other))], 500).difference
    assert paired.high - paired.low < 0.5 * (unpaired.high - unpaired.low)


def test_seeds_are_pooled_and_their_spread_widens_the_interval():
    reference = np.zeros(1000)
    reference[::2] = 1
    better, worse = reference + 0.1, reference - 0.1
    pairs = [(mean_of(better), mean_of(reference)), (mean_of(worse), mean_of(reference))]
    found = paired_bootstrap(pairs, 1000)
    assert found.seeds == 2
    assert found.difference.value == pytest.approx(0.0)
    assert (found.difference.low, found.difference.high) == (pytest.approx(-0.1), pytest.approx(0.1))
    assert paired_bootstrap(pairs[:1], 1000).difference.low == pytest.approx(0.1)


def test_bootstrap_is_seeded():
    generator = np.random.default_rng(3)
    pair = [(mean_of(generator.random(50)), mean_of(generator.random(50)))]
    assert paired_bootstrap(pair, 50, seed=5) == paired_bootstrap(pair, 50, seed=5)
    assert paired_bootstrap(pair, 50, seed=5) != paired_bootstrap(pair, 50, seed=6)


def test_undefined_resamples_are_counted_and_left_out():
    def sometimes(indices):
        return float("nan") if indices[0] % 2 else 1.0

    found = paired_bootstrap([(sometimes, mean_of([0.5] * 10))], 10, resamples=400)
    assert 100 < found.undefined < 300
    assert found.difference == Interval(0.5, 0.5, 0.5)


def test_retention_is_undefined_for_a_reference_at_or_below_zero():
    found = paired_bootstrap([(mean_of([0.2] * 8), mean_of([-0.1] * 8))], 8)
    assert math.isnan(found.retention.value)
    assert math.isnan(found.retention.low)
    assert found.difference.value == pytest.approx(0.3)


def test_bootstrap_names_every_mistake_at_once():
    with pytest.raises(UserError) as caught:
        paired_bootstrap([], 0, resamples=5, confidence=95)
    assert len(caught.value.problems) == 4
    assert "confidence=95" in str(caught.value)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (-0.009, 0.001, "non-inferior"),
        (-0.011, 0.001, "not shown"),
        (-0.05, -0.02, "inferior"),
        (-0.01, 0.01, "not shown"),
        (float("nan"), float("nan"), "not shown"),
    ],
)
def test_non_inferiority_follows_the_interval(low, high, verdict):
    assert non_inferior(Interval((low + high) / 2, low, high), margin=0.01) == verdict


def test_non_inferiority_refuses_a_negative_margin():
    with pytest.raises(UserError, match=r"margin=-0\.1"):
        non_inferior(Interval(0, 0, 0), -0.1)


def test_mcnemar_matches_the_binomial_sum():
    candidate = [1] * 3 + [0] * 10 + [1] * 20
    reference = [0] * 3 + [1] * 10 + [1] * 20
    found = mcnemar(candidate, reference)
    tail = sum(math.comb(13, k) for k in range(4)) / 2**13
    assert (found.only_candidate, found.only_reference) == (3, 10)
    assert found.p_value == pytest.approx(2 * tail)


def test_mcnemar_of_models_that_never_differ_is_one():
    assert mcnemar([1, 0, 1], [1, 0, 1]).p_value == 1.0


def test_mcnemar_refuses_other_values_and_lengths():
    with pytest.raises(UserError, match="must be 0"):
        mcnemar([0.5, 1], [1, 1])
    with pytest.raises(UserError, match="2 values against 3"):
        mcnemar([1, 1], [1, 1, 0])


def test_calibration_error_by_hand():
    # Bins of 15: 0.95 and 0.99 share the last one; 0.6 = 9/15 is the right edge of its bin.
    confidence, correct = [0.95, 0.99, 0.6, 0.61], [1, 0, 1, 1]
    expected = abs(1 - 1.94) / 4 + abs(1 - 0.6) / 4 + abs(1 - 0.61) / 4
    assert expected_calibration_error(confidence, correct) == pytest.approx(expected)


def test_calibration_error_against_a_slow_loop():
    generator = np.random.default_rng(4)
    confidence = generator.random(500)
    correct = generator.random(500) < confidence**2
    expected = 0.0
    for place in range(15):
        inside = [i for i, sure in enumerate(confidence) if place / 15 < sure <= (place + 1) / 15]
        if inside:
            expected += abs(np.mean(correct[inside]) - np.mean(confidence[inside])) * len(inside) / 500
    assert expected_calibration_error(confidence, correct) == pytest.approx(expected)


def test_calibration_error_of_nothing_and_of_certainty():
    assert math.isnan(expected_calibration_error([], []))
    assert expected_calibration_error([1.0, 1.0], [1, 1]) == 0.0


def test_agreement_by_kind():
    labels = agreement("classification", [{"label": "a"}, {"label": "b"}], [{"label": "a"}, {"label": "a"}])
    assert labels == {"labels": 0.5}
    tags = agreement(
        "tagging", [{"tags": ["O", "O", "O"]}, {"tags": ["B"]}], [{"tags": ["O", "O", "B"]}, {"tags": ["B"]}]
    )
    assert tags == {"words": 0.75, "sentences": 0.5}
    assert agreement("qa", [{"text": "x"}], [{"text": "x y"}]) == {"texts": 0.0}
    scores = agreement("regression", [{"score": 1.0}, {"score": 2.0}], [{"score": 1.5}, {"score": 3.5}])
    assert scores == {"pearson": pytest.approx(1.0), "largest_difference": 1.5}


def test_agreement_refuses_other_examples_and_kinds():
    with pytest.raises(UserError, match="1 answer against 0"):
        agreement("qa", [{"text": "x"}], [])
    with pytest.raises(UserError, match="masked-lm"):
        agreement("masked-lm", [], [])


def test_models_that_always_answer_the_same_have_a_pearson_of_0_as_in_their_score():
    constant, rising = [{"score": 1.0}] * 3, [{"score": value} for value in (1.0, 2.0, 3.0)]
    for first, second in ((constant, rising), (rising, constant), (constant, constant), (rising[:1], rising[1:2])):
        assert agreement("regression", first, second)["pearson"] == 0.0
    assert agreement("regression", rising, [{"score": value} for value in (3.0, 5.0, 4.0)])["pearson"] == 0.5
    assert agreement("regression", [], [])["pearson"] == 0.0


class TestGroups:
    def metrics(self, candidate, reference):
        return (lambda places: float(candidate[places].mean())), (lambda places: float(reference[places].mean()))

    def test_groups_of_equal_examples_widen_the_interval_as_fewer_examples_do(self):
        chance = np.random.default_rng(13)
        alone = chance.integers(0, 2, (2, 100)).astype(float)
        grouped = np.repeat(alone, 4, axis=1)
        few = paired_bootstrap([self.metrics(*alone)], 100, resamples=4000)
        many = paired_bootstrap([self.metrics(*grouped)], 400, groups=np.repeat(np.arange(100), 4), resamples=4000)
        blind = paired_bootstrap([self.metrics(*grouped)], 400, resamples=4000)
        width = {
            name: one.difference.high - one.difference.low for name, one in (("f", few), ("m", many), ("b", blind))
        }
        assert width["m"] == pytest.approx(width["f"], rel=0.05)
        assert width["b"] == pytest.approx(width["f"] / 2, rel=0.1)

    def test_a_group_is_drawn_whole_however_its_examples_lie(self):
        seen = []
        metric = lambda places: seen.append(places) or 0.5  # noqa: E731
        paired_bootstrap([(metric, metric)], 5, groups=["b", "a", "b", "c", "a"], resamples=100)
        for places in seen[2:]:
            counts = np.bincount(places, minlength=5)
            assert counts[0] == counts[2]
            assert counts[1] == counts[4]
            assert counts[0] + counts[1] + counts[3] == 3

    def test_a_group_an_example_is_no_group(self):
        chance = np.random.default_rng(13)
        sides = chance.integers(0, 2, (2, 60)).astype(float)
        first = paired_bootstrap([self.metrics(*sides)], 60)
        assert paired_bootstrap([self.metrics(*sides)], 60, groups=np.arange(60)) == first

    def test_one_group_has_no_interval(self):
        sides = self.metrics(np.array([1.0, 0.0, 1.0]), np.array([0.0, 0.0, 1.0]))
        for found in (paired_bootstrap([sides], 3, groups=["a"] * 3), paired_bootstrap([sides], 1)):
            assert np.isnan([found.difference.low, found.difference.high, found.p_value]).all()
        assert found.difference.value == 1

    def test_as_many_groups_as_examples(self):
        with pytest.raises(UserError, match="3 groups for 5 examples"):
            paired_bootstrap([self.metrics(np.ones(5), np.ones(5))], 5, groups=[1, 2, 3])


def test_the_interval_of_one_score_is_student_s_for_one_seed_and_wider_for_several():
    values = np.random.default_rng(0).normal(0.8, 0.2, 60)
    found = score_interval(values[None])
    expected = stats.t.interval(0.95, 59, values.mean(), stats.sem(values))
    assert (found.low, found.high) == pytest.approx(expected)
    alike, apart = score_interval([values, values]), score_interval([values + 0.05, values - 0.05])
    assert alike.high - alike.low == pytest.approx(found.high - found.low)
    assert apart.high - apart.low > 2 * (alike.high - alike.low), "two seeds say little of others"
