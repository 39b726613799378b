"""Two models that are right or wrong on the same examples: their difference, and how many examples a margin needs.

The bootstrap cannot be used here alone: where two models agree on every example, it gives an interval of width 0,
however few the examples are. Tango's score interval stays honest there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from eval.errors import UserError
from eval.proof.paired_statistics import Interval, mcnemar


@dataclass(frozen=True)
class Discordance:
    """On how many of the same examples two models differ.

    Attributes:
        examples: All examples.
        only_candidate: Examples on which the candidate alone is right; an effective number need not be whole.
        only_reference: Examples on which the reference alone is right.
    """

    examples: int
    only_candidate: float
    only_reference: float

    @classmethod
    def of(cls, candidate: ArrayLike, reference: ArrayLike) -> Discordance:
        """Count from the correctness of both models.

        Args:
            candidate: ``[N]`` of 0 (wrong) and 1 (right).
            reference: ``[N]`` of 0 and 1, on the same examples.

        Raises:
            UserError: The lengths differ, there is no example, or a value is neither 0 nor 1.
        """
        if not np.size(candidate):
            raise UserError("paired proportions: 0 values against 0; give both models' on the same examples")
        found = mcnemar(candidate, reference)
        return cls(np.size(candidate), found.only_candidate, found.only_reference)

    @property
    def share(self) -> float:
        """Share of examples on which exactly one of the two is right."""
        return min(1.0, (self.only_candidate + self.only_reference) / self.examples)  # counts of weights may round


def score_interval(counts: Discordance, confidence: float = 0.95) -> Interval:
    """Return candidate minus reference, as accuracies, with Tango's score interval.

    The interval holds every difference ``d`` that the score test does not refuse: ``|z(d)|`` is at most the normal
    quantile, with ``z(d) = (b - c - n d) / sqrt(n (2 q + d (1 - d)))`` for ``b`` and ``c`` examples that only the
    candidate and only the reference has right, and ``q`` the most likely share of the latter, given ``d``.

    Args:
        counts: On how many examples the models differ.
        confidence: Coverage of the interval.

    Raises:
        UserError: The confidence is not between 0 and 1.

    Examples:
        Two models that agree on all of 380 examples may still differ by a hair more than a point:

        >>> interval = score_interval(Discordance(examples=380, only_candidate=0, only_reference=0))
        >>> round(interval.low, 5)
        -0.01001

    Source:
        Tango 1998, Equivalence test and confidence interval for the difference in proportions for the paired-sample
        design, Statistics in Medicine 17.
    """
    if not 0 < confidence < 1:
        raise UserError(f"score_interval: confidence={confidence} must lie between 0 and 1, such as 0.95")
    return limits(counts, NormalDist().inv_cdf((1 + confidence) / 2))


def limits(counts: Discordance, quantile: float) -> Interval:
    """Return the difference with the ends at which the score is the quantile and its negative."""
    value = (counts.only_candidate - counts.only_reference) / counts.examples
    return Interval(value, _limit(counts, quantile, -1.0, value), _limit(counts, -quantile, 1.0, value))


def examples_needed(
    disagreement: float, margin: float, difference: float = 0.0, power: float = 0.8, confidence: float = 0.95
) -> int | None:
    """Return how many examples show non-inferiority within a margin, with the probability ``power``.

    Args:
        disagreement: Share of examples on which exactly one of the two models is right.
        margin: Loss of accuracy that is allowed, above 0.
        difference: True candidate minus reference.
        power: Probability that the interval lies above ``-margin``.
        confidence: Coverage of the interval.

    Returns:
        The number of examples; None if no number suffices, as the true loss is the margin or more.

    Raises:
        UserError: A value is out of range.

    Source:
        Tango 1998 (variance under the margin); Liu et al. 2002, Statistics in Medicine 21 (sample size).
    """
    wrong = []
    if not abs(difference) <= disagreement <= 1:
        wrong.append(f"examples_needed: disagreement={disagreement} must lie between |difference| and 1")
    wrong += [
        f"examples_needed: {name}={value} must lie between 0 and 1"
        for name, value in (("margin", margin), ("power", power), ("confidence", confidence))
        if not 0 < value < 1
    ]
    if wrong:
        raise UserError(*wrong)
    if difference <= -margin:
        return None
    at_margin = math.sqrt(_variance((disagreement + difference) / 2, (disagreement - difference) / 2, -margin))
    at_truth = math.sqrt(disagreement - difference**2)
    normal = NormalDist()
    reach = normal.inv_cdf((1 + confidence) / 2) * at_margin + normal.inv_cdf(power) * at_truth
    return math.ceil((reach / (margin + difference)) ** 2)


def smallest_margin(counts: Discordance, power: float = 0.8, confidence: float = 0.95) -> float:
    """Return the smallest margin that so many examples show between two equally good models, with that ``power``.

    The models are taken to differ on as many examples as they do here.

    Args:
        counts: On how many examples the models differ.
        power: Probability that the interval lies above the margin.
        confidence: Coverage of the interval.

    Returns:
        The margin, to four digits; 1 where no smaller one suffices.

    Raises:
        UserError: A value is out of range.
    """
    low, high = 0.0, 1.0
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        needed = examples_needed(counts.share, middle, power=power, confidence=confidence)
        low, high = (low, middle) if needed is not None and needed <= counts.examples else (middle, high)
    return high


def _limit(counts: Discordance, quantile: float, end: float, value: float) -> float:
    """Return the difference between ``end`` and ``value`` at which the score test reaches the quantile."""
    inside, outside = value, end
    if (score(counts, end) - quantile) * (score(counts, value) - quantile) >= 0:
        return end
    while abs(inside - outside) > 1e-12:
        middle = (inside + outside) / 2
        if abs(score(counts, middle)) < abs(quantile):
            inside = middle
        else:
            outside = middle
    return (inside + outside) / 2


def score(counts: Discordance, difference: float) -> float:
    """Return z of what was seen, if the true difference were this one; above 0, more was seen."""
    n, b, c = counts.examples, counts.only_candidate, counts.only_reference
    gap = b - c - n * difference
    variance = n * _variance(b / n, c / n, difference)
    if variance <= 0:
        return math.copysign(math.inf, gap) if gap else 0.0
    return gap / math.sqrt(variance)


def _variance(only_candidate: float, only_reference: float, difference: float) -> float:
    """Return the variance of one example's difference if the true one were ``difference``, given the shares seen."""
    linear = -(only_candidate + only_reference) + (2 - only_candidate + only_reference) * difference
    constant = -only_reference * difference * (1 - difference)
    share = (math.sqrt(max(linear**2 - 8 * constant, 0.0)) - linear) / 4
    return max(2 * share + difference * (1 - difference), 0.0)
