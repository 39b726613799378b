"""From where on a question is left without an answer, when that is chosen on examples."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

USUAL = 0.0
"""The threshold that nobody chose."""


def best_null_threshold(
    margins: NDArray[np.float64], spans: NDArray[np.float64], nothing: NDArray[np.float64]
) -> float:
    """Return the threshold with the best mean score, as ``find_best_thresh`` of SQuAD 2.0's script searches it.

    A question is answered by its best span where its margin is not above the threshold. Of thresholds that are as good,
    half way between two margins, the nearest to ``USUAL`` is taken, and it itself where none is better.

    Args:
        margins: Null score less the score of the best span, ``[N]``.
        spans: What the best span of each question scores, ``[N]``.
        nothing: What no answer scores, ``[N]``.

    Examples:
        >>> import numpy as np
        >>> best_null_threshold(np.array([-3.0, 1.0, 2.0]), np.array([1.0, 1.0, 0.0]), np.array([0.0, 0.0, 1.0]))
        1.5
    """
    if not len(margins):
        return USUAL
    order = np.argsort(margins, kind="stable")
    levels = margins[order]
    totals = nothing.sum() + np.append(0.0, (spans - nothing)[order].cumsum())  # of the first k answered
    ends = np.append(True, np.append(levels[1:] > levels[:-1], True))
    candidates = np.concatenate([[levels[0] - 1], (levels[1:] + levels[:-1]) / 2, [levels[-1] + 1]])[ends]
    usual = np.where(margins > USUAL, nothing, spans).sum()
    best = totals[ends].max()
    if usual >= best:
        return USUAL
    equal = candidates[totals[ends] >= best]
    return float(f"{equal[np.abs(equal - USUAL).argmin()]:.6g}")
