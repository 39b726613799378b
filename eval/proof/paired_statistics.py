"""Paired statistics: is one model as good as another on the same examples, and how sure is that?

Two models that are measured on the same examples are compared example by example. That is far sharper than holding two
separate intervals side by side, because most of the chance lies in which examples were drawn, and both models share it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eval.errors import UserError, quantity
from eval.examples import Answer
from eval.files.json_number import Number as Number
from eval.kinds.kind_registry import kind_of

Metric = Callable[[NDArray[np.int64]], float]
"""The metric of one model on the examples with these indices (see ``eval.scores.resampler``)."""
Verdict = Literal["non-inferior", "inferior", "not shown", "selection"]
"""``selection``: something was chosen on the very same examples, so that they show no margin (``eval.proof.role``)."""


@dataclass(frozen=True)
class Interval:
    """A value with its interval.

    Attributes:
        value: The estimate on all examples.
        low: Lower bound.
        high: Upper bound.
    """

    value: Number
    low: Number
    high: Number


@dataclass(frozen=True)
class Difference:
    """A candidate against a reference on the same examples; all figures are means over the seeds.

    Attributes:
        candidate: The candidate's metric.
        reference: The reference's metric.
        difference: Candidate minus reference.
        retention: Candidate divided by reference; NaN where the reference is not above 0.
        p_value: Share of resamples in which the candidate is not better (difference <= 0), never exactly 0; NaN where
            there is none.
        confidence: Coverage of the intervals.
        resamples: How many resamples the intervals rest on.
        undefined: Resamples left out because the metric does not exist there.
        seeds: Pairs that were pooled.
        examples: Examples of each pair.
    """

    candidate: float
    reference: float
    difference: Interval
    retention: Interval
    p_value: float
    confidence: float
    resamples: int
    undefined: int
    seeds: int
    examples: int


def paired_bootstrap(
    pairs: Sequence[tuple[Metric, Metric]],
    examples: int,
    *,
    groups: ArrayLike | None = None,
    resamples: int = 2000,
    confidence: float = 0.95,
    seed: int = 13,
) -> Difference:
    """Compare two models, or two ways of training pooled over several seeds, by the paired bootstrap.

    Every resample draws as many examples as there are, with replacement, and uses the same ones for both models.
    With several pairs (one a training seed) the pairs are drawn with replacement too, so the interval carries the
    spread between seeds as well; with two or three seeds it still understates that spread. A single example, or a
    single group, has no interval: its ends and the p-value are NaN.

    Args:
        pairs: For each seed the metric of the (candidate, reference) on given indices.
        examples: How many examples there are.
        groups: ``[N]``, the group of every example, such as its document: whole groups are drawn, since examples of one
            group are right and wrong together; None draws single examples.
        resamples: How many resamples to draw.
        confidence: Coverage of the percentile intervals.
        seed: Seed of the resampling.

    Raises:
        UserError: No pair, no example, fewer than 100 resamples, a confidence outside of (0, 1), or groups of another
            number of examples.

    Source:
        Efron & Tibshirani 1993, An Introduction to the Bootstrap; Koehn 2004, Statistical significance tests for
        machine translation evaluation (the paired form); Davison & Hinkley 1997 (p-value with one added; drawing
        whole groups, section 3.8).

    Examples:
        >>> import numpy as np
        >>> candidate, reference = np.array([1, 1, 0, 1] * 50), np.array([1, 1, 1, 1] * 50)  # 1: a right prediction
        >>> metrics = (lambda rows: candidate[rows].mean(), lambda rows: reference[rows].mean())
        >>> found = paired_bootstrap([metrics], examples=200)
        >>> print(f"{found.difference.value:.3f} [{found.difference.low:.3f}, {found.difference.high:.3f}]")
        -0.250 [-0.310, -0.190]
    """
    problems = []
    if not pairs:
        problems.append("paired_bootstrap: no pair of models was given; give at least one (candidate, reference)")
    if examples < 1:
        problems.append("paired_bootstrap: there are no examples to compare on")
    if resamples < 100:
        problems.append(f"paired_bootstrap: resamples={resamples} is too few for an interval; use 100 or more")
    if not 0 < confidence < 1:
        problems.append(f"paired_bootstrap: confidence={confidence} must lie between 0 and 1, such as 0.95")
    if groups is not None and len(np.asarray(groups)) != examples:
        problems.append(
            f"paired_bootstrap: {len(np.asarray(groups))} groups for {examples} examples; give one for each"
        )
    if problems:
        raise UserError(*problems)
    generator = np.random.default_rng(seed)
    everything = np.arange(examples, dtype=np.int64)
    draw = _drawing(examples, groups, generator)
    whole = np.array([(candidate(everything), reference(everything)) for candidate, reference in pairs]).mean(axis=0)
    drawn = np.empty((resamples, 2))
    for row in range(resamples):
        indices = draw()
        chosen = generator.integers(0, len(pairs), size=len(pairs)) if len(pairs) > 1 else np.zeros(1, dtype=np.int64)
        values = {seed_index: [metric(indices) for metric in pairs[seed_index]] for seed_index in set(chosen.tolist())}
        drawn[row] = np.mean([values[seed_index] for seed_index in chosen.tolist()], axis=0)
    if (examples if groups is None else len(np.unique(np.asarray(groups)))) < 2:
        drawn[:] = np.nan  # every resample is the same
    differences = drawn[:, 0] - drawn[:, 1]
    defined = differences[np.isfinite(differences)]
    return Difference(
        candidate=float(whole[0]),
        reference=float(whole[1]),
        difference=_interval(float(whole[0] - whole[1]), differences, confidence),
        retention=_interval(float(_ratio(whole[None])[0]), _ratio(drawn), confidence),
        p_value=float((np.count_nonzero(defined <= 0) + 1) / (len(defined) + 1)) if len(defined) else float("nan"),
        confidence=confidence,
        resamples=resamples,
        undefined=resamples - len(defined),
        seeds=len(pairs),
        examples=examples,
    )


def _drawing(
    examples: int, groups: ArrayLike | None, generator: np.random.Generator
) -> Callable[[], NDArray[np.int64]]:
    """Return what draws the indices of one resample: single examples, or all those of groups that are drawn."""
    if groups is None:
        return lambda: generator.integers(0, examples, size=examples, dtype=np.int64)
    _, number = np.unique(np.asarray(groups), return_inverse=True)
    order = np.argsort(number, kind="stable")
    members = np.split(order, np.cumsum(np.bincount(number))[:-1])

    def draw() -> NDArray[np.int64]:
        chosen = generator.integers(0, len(members), size=len(members))
        return np.concatenate([members[group] for group in chosen.tolist()])

    return draw


def _ratio(values: NDArray[np.float64]) -> NDArray[np.float64]:
    candidate, reference = values[:, 0], values[:, 1]
    return np.asarray(np.divide(candidate, reference, out=np.full(len(values), np.nan), where=reference > 0))


def _interval(value: float, drawn: NDArray[np.float64], confidence: float) -> Interval:
    defined = drawn[np.isfinite(drawn)]
    if not np.isfinite(value) or not len(defined):
        return Interval(value, float("nan"), float("nan"))
    tail = (1 - confidence) / 2
    low, high = np.quantile(defined, [tail, 1 - tail])
    return Interval(value, float(low), float(high))


def non_inferior(difference: Interval, margin: float) -> Verdict:
    """Say whether a candidate may lose no more than ``margin`` (in units of the metric) against the reference.

    Returns:
        "non-inferior" if the whole interval of candidate - reference lies above -margin, "inferior" if all of it lies
        below, else "not shown": the data cannot tell.

    Raises:
        UserError: The margin is negative.

    Examples:
        >>> non_inferior(Interval(-0.004, -0.009, 0.001), margin=0.01)
        'non-inferior'
        >>> non_inferior(Interval(-0.004, -0.012, 0.004), margin=0.01)
        'not shown'
    """
    if not margin >= 0:
        raise UserError(f"margin={margin} must be 0 or more, in units of the metric, such as 0.01")
    if difference.low > -margin:
        return "non-inferior"
    return "inferior" if difference.high < -margin else "not shown"


@dataclass(frozen=True)
class McNemar:
    """Examples on which exactly one of two models is right.

    Attributes:
        only_candidate: Right by the candidate, wrong by the reference.
        only_reference: The other way round.
        p_value: Two-sided exact p-value of "both are right equally often".
    """

    only_candidate: int
    only_reference: int
    p_value: float


def mcnemar(candidate: ArrayLike, reference: ArrayLike) -> McNemar:
    """Run McNemar's exact test on 0/1 correctness, example by example.

    Args:
        candidate: ``[N]`` of 0 and 1.
        reference: ``[N]`` of 0 and 1, on the same examples.

    Raises:
        UserError: The lengths differ, or a value is neither 0 nor 1.

    Source:
        McNemar 1947; the exact binomial form as in Dietterich 1998.

    Examples:
        >>> mcnemar([1, 1, 1, 0], [1, 0, 1, 0])
        McNemar(only_candidate=1, only_reference=0, p_value=1.0)
    """
    first, second = np.asarray(candidate, dtype=np.float64), np.asarray(reference, dtype=np.float64)
    if first.shape != second.shape:
        raise UserError(f"mcnemar: {first.size} values against {second.size}; both must be on the same examples")
    if not (is_binary(first) and is_binary(second)):
        raise UserError("mcnemar: values must be 0 (wrong) or 1 (right); use paired_bootstrap for other scores")
    only_candidate, only_reference = int(np.sum(first > second)), int(np.sum(first < second))
    return McNemar(only_candidate, only_reference, _fair_coin(only_candidate, only_reference))


def _fair_coin(heads: int, tails: int) -> float:
    """Return the two-sided exact p-value of a fair coin that fell so, from whole numbers."""
    throws, ways, tail = heads + tails, 1, 0
    for place in range(min(heads, tails) + 1):
        tail += ways
        ways = ways * (throws - place) // (place + 1)
    return float(min(Fraction(1), Fraction(2 * tail, 2**throws)))


def is_binary(values: NDArray[np.float64]) -> bool:
    """Return whether every value is 0 or 1."""
    return bool(np.isin(values, (0.0, 1.0)).all())


def expected_calibration_error(confidence: ArrayLike, correct: ArrayLike, bins: int = 15) -> float:
    """Return the mean gap between how sure a classifier is and how often it is right.

    Sum over bins of equal width of ``share of examples * |accuracy - mean confidence|``.

    Args:
        confidence: ``[N]`` probability of the answer given.
        correct: ``[N]`` 1 where that answer is right.
        bins: Number of bins over [0, 1].

    Source:
        Naeini et al. 2015; Guo et al. 2017, arXiv 1706.04599 (15 bins).

    Examples:
        >>> round(expected_calibration_error([0.9, 0.9, 0.9, 0.9], [1, 1, 1, 0]), 4)  # sure of 90%, right in 75%
        0.15
    """
    sure, right = np.asarray(confidence, dtype=np.float64), np.asarray(correct, dtype=np.float64)
    if not sure.size:
        return float("nan")
    # Bins are closed on the right, as in Guo et al.: (0, 1/15], (1/15, 2/15] ...
    places = np.clip(np.ceil(sure * bins).astype(np.int64) - 1, 0, bins - 1)
    gaps = np.bincount(places, weights=right - sure, minlength=bins)
    return float(np.abs(gaps).sum() / sure.size)


def agreement(kind: str, candidate: Sequence[Answer], reference: Sequence[Answer]) -> dict[str, float]:
    """Return how alike the answers of two models are, whether right or wrong.

    Args:
        kind: Task kind.
        candidate: One answer an example (see ``eval.inference.Predictions``).
        reference: The other model's answers to the same examples.

    Returns:
        By kind, see ``agreement`` in its file: shares of equal labels, words, sentences or texts; correlations.

    Raises:
        UserError: The numbers of answers differ, or the kind has no answers to compare.

    Examples:
        >>> agreement("classification", [{"label": "good"}, {"label": "bad"}], [{"label": "good"}, {"label": "good"}])
        {'labels': 0.5}
    """
    if len(candidate) != len(reference):
        raise UserError(
            f"agreement: {quantity(len(candidate), 'answer')} against {len(reference)}; both must be on the "
            "same examples"
        )
    if kind_of(kind).masks:
        raise UserError(f"agreement: a {kind} model gives no answers to compare")
    return kind_of(kind).agreement(list(zip(candidate, reference, strict=True)))
