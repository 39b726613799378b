"""From which probability a label is answered, when that is chosen on examples."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

USUAL = 0.5
"""The threshold that nobody chose."""
LOWEST, HIGHEST = 1e-6, 1 - 1e-6
"""Ends of what is chosen from."""


def best_thresholds(chances: NDArray[np.float64], true: NDArray[np.bool_]) -> tuple[float, ...]:
    """Return for each label the threshold with the best F1 of this label, half way between two probabilities.

    That maximises the macro F1 on these examples, and about so the micro F1. Of thresholds that are as good, the
    nearest to ``USUAL`` is taken, and it itself where none is better or no example has the label. A label that few
    examples have gets a threshold that says little of others: Lipton, Elkan, Naryanaswamy 2014, arXiv 1402.1892.
    Choosing label by label is SCut of Yang 2001, A study of thresholding strategies for text categorization.

    Args:
        chances: Probability of each label, ``[N, C]``.
        true: Which labels each example has, ``[N, C]``.

    Examples:
        >>> import numpy as np
        >>> best_thresholds(np.array([[0.1], [0.2], [0.4], [0.3]]), np.array([[False], [True], [True], [True]]))
        (0.15,)
    """
    return tuple(_best(column, there) for column, there in zip(chances.T, true.T, strict=True))


def _best(chances: NDArray[np.float64], true: NDArray[np.bool_]) -> float:
    if not true.any():
        return USUAL
    order = np.argsort(-chances, kind="stable")
    levels, right = chances[order], true[order].cumsum()
    ends = np.append(levels[1:] < levels[:-1], True)
    below = np.append(levels[1:], 0.0)
    scores = 2 * right / (np.arange(1, len(levels) + 1) + true.sum())
    candidates = (levels + below) / 2
    allowed = ends & (candidates >= LOWEST) & (candidates <= HIGHEST)
    best = scores[allowed].max(initial=0.0)
    answered = chances >= USUAL
    if 2 * (answered & true).sum() / max(1, answered.sum() + true.sum()) >= best:
        return USUAL
    equal = candidates[allowed & (scores >= best)]
    return float(f"{equal[np.abs(equal - USUAL).argmin()]:.6g}")
