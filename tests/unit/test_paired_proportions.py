"""The score interval of a paired difference against a slow statement of it, and how many examples a margin needs."""

import math
from statistics import NormalDist

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from eval.errors import UserError
from eval.proof.paired_proportions import Discordance, examples_needed, score_interval, smallest_margin

Z = NormalDist().inv_cdf(0.975)


def slow_score(counts, difference):
    """Return z with the most likely share of ``only_reference`` found by search instead of by the quadratic formula."""
    n, b, c = counts.examples, counts.only_candidate, counts.only_reference
    low, high = max(0.0, -difference), (1 - difference) / 2

    def surprise(share):
        cells = ((b, share + difference), (c, share), (n - b - c, 1 - 2 * share - difference))
        return -sum(count * math.log(max(chance, 1e-300)) for count, chance in cells if count)

    share = minimize_scalar(surprise, bounds=(low, high), method="bounded", options={"xatol": 1e-13}).x
    return (b - c - n * difference) / math.sqrt(n * (2 * share + difference * (1 - difference)))


@pytest.mark.parametrize("counts", [(50, 12, 2), (44, 3, 1), (200, 0, 5), (872, 20, 31), (2000, 9, 9), (30, 1, 14)])
def test_both_ends_are_where_the_score_test_reaches_the_quantile(counts):
    counts = Discordance(*counts)
    interval = score_interval(counts)
    assert interval.value == (counts.only_candidate - counts.only_reference) / counts.examples
    assert slow_score(counts, interval.low) == pytest.approx(Z, abs=1e-4)
    assert slow_score(counts, interval.high) == pytest.approx(-Z, abs=1e-4)


@pytest.mark.parametrize("examples", [1, 20, 380, 381, 872])
def test_where_nothing_disagrees_few_examples_show_little(examples):
    interval = score_interval(Discordance(examples, 0, 0))
    assert interval.low == pytest.approx(-(Z**2) / (examples + Z**2), abs=1e-9)
    assert interval.high == -interval.low
    assert (interval.low > -0.01) == (examples >= 381)


def test_a_candidate_that_is_always_better_ends_at_one():
    assert score_interval(Discordance(10, 10, 0)).high == 1.0
    assert score_interval(Discordance(10, 0, 10)).low == -1.0


def test_swapping_the_models_mirrors_the_interval():
    one, other = score_interval(Discordance(120, 9, 4)), score_interval(Discordance(120, 4, 9))
    assert (one.low, one.high) == pytest.approx((-other.high, -other.low), abs=1e-9)


@pytest.mark.parametrize(("disagreement", "difference"), [(0.01, 0.0), (0.05, 0.0), (0.05, -0.01), (0.1, 0.02)])
def test_the_interval_covers_the_truth_as_often_as_it_says(disagreement, difference):
    chance = np.random.default_rng(13)
    better, worse = (disagreement + difference) / 2, (disagreement - difference) / 2
    drawn = chance.multinomial(872, [better, worse, 1 - disagreement], size=1000)
    intervals = [score_interval(Discordance(872, int(b), int(c))) for b, c, _ in drawn]
    assert 0.93 <= np.mean([one.low <= difference <= one.high for one in intervals]) <= 0.97


@pytest.mark.parametrize("margin", [0.01, 0.02])
@pytest.mark.parametrize("disagreement", [0.03, 0.08])
def test_so_many_examples_are_enough_as_often_as_was_asked(disagreement, margin):
    needed = examples_needed(disagreement, margin)
    chance = np.random.default_rng(13)
    drawn = chance.multinomial(needed, [disagreement / 2, disagreement / 2, 1 - disagreement], size=400)
    shown = np.mean([score_interval(Discordance(needed, int(b), int(c))).low > -margin for b, c, _ in drawn])
    assert 0.75 <= shown <= 0.86


def test_the_examples_that_a_point_needs():
    assert examples_needed(0.0, 0.01) == 381  # nothing ever disagrees
    assert examples_needed(0.05, 0.01, difference=-0.01) is None  # the loss is the margin: no number will do
    assert examples_needed(0.05, 0.01, difference=0.005) < examples_needed(0.05, 0.01)
    assert examples_needed(0.05, 0.01, power=0.9) > examples_needed(0.05, 0.01)


def test_counting():
    assert Discordance.of([1, 1, 0, 0, 1], [1, 0, 1, 0, 0]) == Discordance(5, 2, 1)
    assert Discordance(5, 2, 1).share == 0.6


@pytest.mark.parametrize(
    ("candidate", "reference", "reason"),
    [([1, 0], [1], "2 values against 1"), ([], [], "0 values against 0"), ([0.5], [1.0], "0 .wrong. or 1")],
)
def test_what_cannot_be_counted(candidate, reference, reason):
    with pytest.raises(UserError, match=reason):
        Discordance.of(candidate, reference)


def test_every_wrong_value_is_named_at_once():
    with pytest.raises(UserError) as caught:
        examples_needed(2.0, 0.0, power=1.0)
    assert [word for word in ("disagreement=2.0", "margin=0.0", "power=1.0") if word in str(caught.value)] != []
    assert len(caught.value.problems) == 3
    with pytest.raises(UserError, match="confidence=1"):
        score_interval(Discordance(5, 0, 0), confidence=1)


@pytest.mark.parametrize("counts", [(872, 20, 31), (1500, 40, 31), (200, 1, 0)])
def test_the_smallest_margin_needs_just_these_examples(counts):
    counts = Discordance(*counts)
    margin = smallest_margin(counts)
    assert examples_needed(counts.share, margin) <= counts.examples < examples_needed(counts.share, 0.99 * margin)
