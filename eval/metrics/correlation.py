"""Pearson's correlation, of values or of their ranks: scores, resamples and the agreement of two models take it."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def pearson(first: ArrayLike, second: ArrayLike) -> float:
    """Return Pearson's correlation of two series of equal length, -1 to 1.

    Where it does not exist it is 0, as every score (see ``eval.scores``): one side is constant, or there are
    fewer than two values. It is NaN if a value is NaN or infinite. NumPy computes it rather than SciPy, whose function
    gives the same number 5 to 20 times slower because it also prepares a test; an interval takes a thousand.

    Args:
        first: ``[N]``.
        second: ``[N]``.
    """
    series = [np.asarray(values, dtype=np.float64) for values in (first, second)]
    if not all(np.isfinite(values).all() for values in series):
        return float("nan")
    # In units of the range, so that no square of a tiny or huge value leaves the range of a float.
    ranges = [float(np.ptp(values)) if values.size else 0.0 for values in series]
    if 0.0 in ranges:
        return 0.0
    x, y = ((values - values.mean()) / width for values, width in zip(series, ranges, strict=True))
    return float(np.corrcoef(x, y)[0, 1])


def ranks(order: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return the ranks of values given by their place among all distinct ones; equal values share their mean rank."""
    counts = np.bincount(order)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[order])


def spearman(first: ArrayLike, second: ArrayLike) -> float:
    """Return Spearman's correlation, Pearson's of the ranks; see ``pearson`` for the arguments.

    Examples:
        >>> spearman([1.0, 2.0, 30.0], [-5.0, 0.0, 0.1])
        1.0
    """
    series = [np.asarray(values, dtype=np.float64) for values in (first, second)]
    if any(np.isnan(values).any() for values in series):
        return float("nan")
    x, y = (ranks(np.unique(values, return_inverse=True)[1]) for values in series)
    return pearson(x, y)
