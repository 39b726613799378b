"""The score interval of any metric against Tango's, by groups and over seeds, and how results are paired off."""

import math

import numpy as np
import pytest
from scipy import stats

from eval.errors import UserError
from eval.measurement import pair
from eval.predictions import Kept
from eval.proof.contributions import contributions, units_of
from eval.proof.paired_difference import PairedDifference
from eval.proof.paired_predictions import paired_scores
from eval.proof.paired_proportions import Discordance, score_interval
from eval.proof.paired_statistics import non_inferior
from eval.proof.student_t import quantile, survival
from eval.report.console import to_text
from eval.report.summary import family, verdict
from eval.result import Result
from eval.task import Examples, TaskSpec


@pytest.mark.parametrize("freedom", [1, 2, 4, 12, 199])
def test_students_t(freedom):
    for value in (-2.5, 0.0, 0.7, 12.0):
        assert survival(value, freedom) == pytest.approx(stats.t.sf(value, freedom), abs=1e-12)
    assert quantile(0.975, freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-9)
    assert quantile(0.1, freedom) == pytest.approx(stats.t.ppf(0.1, freedom), rel=1e-9)


def test_units_are_groups_or_single_examples():
    assert [one.tolist() for one in units_of(4, ["a", None, "a", "b"])] == [[0, 2], [1], [3]]
    assert [one.tolist() for one in units_of(2)] == [[0], [1]]
    together = units_of(1000, most=100)
    assert (len(together), {len(one) for one in together}) == (100, {10})
    assert sorted(np.concatenate(together).tolist()) == list(range(1000))


def test_contributions_of_a_mean_are_its_values():
    values = np.random.default_rng(1).random(30)
    found = contributions(lambda rows: float(values[rows].mean()), 30, units_of(30))
    assert found == pytest.approx(values)


def sides(better, worse, examples):
    reference = np.ones(examples)
    reference[:better] = 0
    candidate = np.ones(examples)
    candidate[better : better + worse] = 0
    return candidate[None], reference[None], (better - worse) / examples


def test_single_right_and_wrong_examples_give_tangos_interval():
    candidate, reference, value = sides(7, 12, 200)
    found = PairedDifference.of(candidate, reference, [value], binary=True).interval()
    expected = score_interval(Discordance(200, 7, 12))
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize("examples", [20, 300, 1000])
@pytest.mark.parametrize("scores", ["shares", "groups"])
def test_where_nothing_differs_few_units_show_little(examples, scores):
    """The bootstrap's interval has no width here, however few the examples are."""
    size = np.random.default_rng(2).beta(5, 1, (1, examples)) if scores == "shares" else np.full((1, examples), 0.9)
    found = PairedDifference.of(size, size, [0.0], binary=False)
    effect = (size**3).sum() / np.square(size).sum()
    z = stats.t.ppf(0.975, examples - 1)
    assert found.interval().low == pytest.approx(-effect * z**2 / (examples + z**2), rel=1e-6)
    assert (found.interval().low > -0.01) == (examples == 1000)
    assert found.units_needed(0.01) > 300


def test_effective_units_keep_second_and_third_moments_and_the_value():
    reference, changes = np.ones((1, 200)), np.zeros((1, 200))
    changes[0, :30], changes[0, 30:32] = -0.1, -2.0  # two units carry four fifths of the loss
    found = PairedDifference.of(reference + changes, reference, [-0.033], binary=False)
    better, worse = found.counts.only_candidate, found.counts.only_reference
    unseen = 1 / 33**3  # as of one more unit that changes all
    third, second = 30 * 0.1**3 + 2 * 8 + unseen, 30 * 0.1**2 + 2 * 4 + unseen
    assert found.effect == pytest.approx(third / second)
    assert found.effect**2 * (better + worse) == pytest.approx(30 * 0.1**2 + 2 * 4)
    assert better == 0
    assert 2 < worse < 2.3  # as few as they are
    assert found.interval().value == found.value == -0.033
    assert found.shift - found.effect * worse / 200 == pytest.approx(-0.033)
    spread = 1.96 * float(changes.std()) / math.sqrt(200)
    assert found.interval().low < -0.033 - 1.5 * spread  # a few more such units may be there


def test_p_values_are_the_tails_at_which_the_interval_ends():
    candidate, reference, value = sides(4, 9, 300)
    for seeds in (1, 3):
        by_seed = [value + step for step in (0.0, 0.01, -0.01)[:seeds]]
        found = PairedDifference.of(
            np.repeat(candidate, seeds, 0), np.repeat(reference, seeds, 0), by_seed, binary=True
        )
        low = found.interval(0.9).low
        assert found.p_value(low) == pytest.approx(0.05, abs=1e-4)
        assert found.p_value(-0.5) < 0.01 < 0.5 < found.p_value(0.0)


def test_training_anew_is_wider_than_these_models_and_knows_how_few_seeds_there_are():
    candidate, reference, value = sides(10, 10, 2000)
    by_seed = [value - 0.02, value + 0.02]
    found = PairedDifference.of(np.repeat(candidate, 2, 0), np.repeat(reference, 2, 0), by_seed, binary=True)
    these, anew = found.of_these_models(), found.interval()
    seeds = stats.t.ppf(0.975, 1) * 0.02 * math.sqrt(2) / math.sqrt(2)
    assert these.low > -0.01
    assert anew.low == pytest.approx(-math.hypot(these.low, seeds), rel=1e-6)


def result(name, right, seed=None, groups=None):
    """A classifier's result, right where the values are 1."""
    answers = [{"label": "yes" if one else "no"} for one in right]
    kept = Kept(answers, [{"label": "yes"}] * len(right), [float(one) for one in right], groups=groups)
    spec = TaskSpec(kind="classification", labels=("no", "yes"))
    score = {"accuracy": float(np.mean(right))}
    values = {"name": name, "task": spec, "split": "test", "digest": "d", "examples": len(right), "scores": score}
    return Result(**values, training_seed=seed, kept=kept)


def test_groups_widen_the_interval_and_are_told():
    chance = np.random.default_rng(3)
    first, second = (np.repeat(chance.random(80) < share, 5) for share in (0.8, 0.9))
    groups = [str(place // 5) for place in range(400)]
    alone = pair(result("a", first), result("b", second))
    grouped = pair(result("a", first, groups=groups), result("b", second))  # an old result kept no groups
    assert (alone.method, alone.groups) == ("score interval", None)
    assert (grouped.method, grouped.groups) == ("score interval by group", 80)
    ratio = (grouped.difference.high - grouped.difference.low) / (alone.difference.high - alone.difference.low)
    assert ratio == pytest.approx(math.sqrt(5), rel=0.1)  # the five of a group are as one
    with pytest.raises(UserError, match="b: its examples are in other groups than those of a"):
        pair(result("a", first, groups=groups), result("b", second, groups=groups[::-1]))


def test_the_same_answers_in_few_groups_show_nothing():
    right = np.ones(1000)
    groups = [str(place // 10) for place in range(1000)]
    found = pair(result("a", right, groups=groups), result("b", right), margin=0.01)
    assert (found.verdict, found.groups) == ("not shown", 100)
    assert found.examples_needed > 3000
    assert found.noninferiority_p > 0.1


@pytest.mark.parametrize(
    ("asked", "gold", "answer"),
    [
        (TaskSpec(kind="regression", metric="spearman"), {"label": -1.0}, {"score": 0.3}),
        (TaskSpec(kind="tagging", metric="entity_f1", labels=("O", "B-A")), {"tags": ["O"]}, {"tags": ["O"]}),
        (TaskSpec(kind="classification", metric="f1", labels=("no", "yes")), {"label": "no"}, {"label": "no"}),
    ],
)
def test_a_metric_that_does_not_exist_shows_nothing(asked, gold, answer):
    """It is 0 of both models, and equal zeros on a thousand examples would be within any margin."""
    found = paired_scores(asked, [([answer] * 1000, [answer] * 1000)], [gold] * 1000)
    assert found.scores.tolist() == [[0.0, 0.0]]
    interval = found.difference.interval()
    assert (interval.value, math.isnan(interval.low), non_inferior(interval, 0.01)) == (0.0, True, "not shown")
    assert math.isnan(found.difference.p_value(-0.01))
    assert found.examples_needed(0.01, 1000) is None


def test_a_share_of_right_examples_always_exists():
    asked = TaskSpec(kind="classification", labels=("no", "yes"))
    wrong = [{"label": "yes"}] * 1000
    for groups in (None, [str(place) for place in range(1000)]):
        found = paired_scores(asked, [(wrong, wrong)], [{"label": "no"}] * 1000, groups)
        assert math.isfinite(found.difference.interval().low)


def test_an_example_whose_group_is_none_stands_alone():
    assert Examples([{"text": "a", "group": None}, {"text": "b", "group": 3}]).groups == [None, "3"]
    assert Examples([{"text": "a", "group": None}, {"text": "b"}]).groups is None


def test_groups_are_kept_in_the_file(tmp_path):
    one = result("a", [1, 0, 1], groups=["x", None, "y"])
    assert Result.load(one.save(tmp_path / "one")).kept.groups == ["x", None, "y"]
    other = result("b", [1, 0, 1])
    assert Result.load(other.save(tmp_path / "other")).kept.groups is None


def test_seeds_are_paired_by_seed():
    right = [1] * 12 + [0] * 8
    candidates = [result("a", right, seed=1), result("a", right[::-1], seed=2)]
    references = [result("b", right[::-1], seed=2), result("b", right, seed=1)]
    found = pair(candidates, references)
    assert (found.seeds, found.covers) == (2, "training anew")
    assert found.agreement == {"labels": 1.0}  # by position no pair would agree
    assert found.these_models.low == pytest.approx(found.difference.low)  # no seed differs
    assert pair(candidates[0], references[1]).covers == "these models"


def test_seeds_without_a_partner_are_named():
    known = {seed: result("m", [1, 0], seed=seed) for seed in (1, 2, 3)}
    with pytest.raises(UserError) as caught:
        pair([known[1], known[2]], [known[2], known[3]])
    assert caught.value.problems == (
        "pair: seed 1 of the candidates have no reference; give results of the same seeds",
        "pair: seed 3 of the references have no candidate; give results of the same seeds",
    )
    unknown = result("m", [1, 0])
    with pytest.raises(UserError, match=r"references \(unknown, 2\) do not say which candidate"):
        pair([known[1], known[2]], [unknown, known[2]])
    assert pair([known[1], known[2]], [unknown, unknown]).seeds == 2
    with pytest.raises(UserError, match="seed 1 is that of several candidates"):
        pair([known[1], known[1]], [known[1], known[2]])


def test_several_candidates_are_judged_as_a_family():
    chance = np.random.default_rng(4)
    right = chance.random(600) < 0.9
    teacher = result("teacher", right)
    close = [result(name, right ^ (chance.random(600) < share)) for name, share in (("a", 0.004), ("b", 0.3))]
    compared = [one.model_copy(update={"comparison": pair(one, teacher, margin=0.02)}) for one in close]
    assert family(compared[:1]) == ""
    assert family(compared) == (
        "2 comparisons: after Holm's correction for all of them, non-inferiority is established for a"
    )
    assert f"{family(compared)}." in to_text(compared, width=400)
    chosen = pair(close[0].model_copy(update={"role": "selection"}), teacher, margin=0.02)
    assert (chosen.verdict, chosen.noninferiority_p) == ("selection", None)
    of_before = chosen.model_copy(update={"noninferiority_p": 1e-6})
    assert family([compared[0], close[0].model_copy(update={"comparison": of_before})]) == ""


def test_what_is_not_shown_says_what_it_would_take():
    right = np.ones(200)
    groups = [str(place // 4) for place in range(200)]
    compared = pair(result("a", right, groups=groups), result("b", right), margin=0.01)
    said = verdict(result("a", right).model_copy(update={"comparison": compared}))
    assert "200 examples in 50 groups" in said
    assert f"within 0.01 by about {compared.examples_needed:,}" in said
