"""Pearson's correlation, the only one: scores, resamples of them and the agreement of two models all take it."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def pearson(first: ArrayLike, second: ArrayLike) -> float:
    """Return Pearson's correlation of two series of equal length, -1 to 1.

    Where it does not exist it is 0, as every score (see ``eval.scores``): one side is constant, or there are
    fewer than two values. It is NaN if a value is NaN or infinite. NumPy computes it rather than SciPy, whose function
    gives the same number 5 to 20 times slower because it also prepares a test; a bootstrap takes thousands.

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
