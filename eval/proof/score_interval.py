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
        >>> score_interval([[1.0, 1.0, 1.0]])
        Interval(value=1.0, low=1.0, high=1.0)
    """
    found = np.asarray(parts, dtype=np.float64)
    value, terms = float(found.mean()), []
    for means in (found.mean(axis=0), found.mean(axis=1)):
        if len(means) > 1:
            terms.append((float(means.var(ddof=1)) / len(means), len(means) - 1))
    variance = sum(term for term, _ in terms)
    if not variance:
        return Interval(value, value, value)
    freedom = variance**2 / sum(term**2 / count for term, count in terms)
    half = quantile(0.5 + confidence / 2, freedom) * math.sqrt(variance)
    return Interval(value, value - half, value + half)
