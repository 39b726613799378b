"""The interval of one score: on other examples, and for training anew where there are several seeds."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from eval.proof.paired_statistics import Interval
from eval.proof.student_t import quantile


def score_interval(parts: ArrayLike, confidence: float = 0.95) -> Interval:
    """Return the mean score of several seeds with its interval.

    Examples and seeds are drawn independently of one another, so the variances of their means add up: that of the
    examples' contributions, averaged over the seeds, and that of the seeds' scores. Degrees of freedom: Welch and
    Satterthwaite's.

    Args:
        parts: What each example, or each group of examples, contributes to the score of each seed, ``[seeds, N]``
            (``eval.proof.contributions``).
        confidence: Coverage.

    Source:
        Satterthwaite 1946, Biometrics Bulletin 2.

    Examples:
        >>> score_interval([[1.0, 0.0, 1.0, 1.0]]).value
        0.75
        >>> score_interval([[1.0] * 50])  # no error was seen, which does not say that there is none
        Interval(value=1.0, low=0.9286524008666412, high=1.0)
    """
    found = np.asarray(parts, dtype=np.float64)
    value, terms = float(found.mean()), []
    for means in (found.mean(axis=0), found.mean(axis=1)):
        if len(means) > 1:
            terms.append((float(means.var(ddof=1)) / len(means), len(means) - 1))
    variance = sum(term for term, _ in terms)
    if not variance:
        return _of_one_value(value, found.shape[1], confidence)
    freedom = variance**2 / sum(term**2 / count for term, count in terms)
    half = quantile(0.5 + confidence / 2, freedom) * math.sqrt(variance)
    return Interval(value, value - half, value + half)


def _of_one_value(value: float, units: int, confidence: float) -> Interval:
    """Return the interval where all units contribute the same: Wilson's of a share of 0 or 1, else none is known.

    Source:
        Wilson 1927, Journal of the American Statistical Association 22.
    """
    if units < 2 or value not in (0.0, 1.0):
        return Interval(value, math.nan, math.nan)
    square = quantile(0.5 + confidence / 2, math.inf) ** 2
    missed = square / (units + square)
    return Interval(value, 1 - missed, 1.0) if value else Interval(value, 0.0, missed)
