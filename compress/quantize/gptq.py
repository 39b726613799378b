"""Codes of a weight matrix that make up for each other's rounding, by the second moments of its inputs (GPTQ)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from compress.modules.int8_scheme import LEVELS, MIDDLE, REDUCED_LEVELS, ReducedRange

Array = NDArray[Any]
DAMPING = 0.01
"""Added to the diagonal of the moments, as a share of its mean: few examples say little of rare directions."""
BLOCK = 64
"""Rows whose errors are handed on together."""


def gptq(matrix: Array, nearest: Array, scale: Array, moments: Array, reduce_range: ReducedRange = "pairs") -> Array:
    """Return int8 codes ``q`` with a smaller ``E ‖x (scale q - w)‖²`` than rounding each weight to the nearest.

    Row by row, the one with the largest ``E x²`` first, weights are rounded, and the rows that are still exact
    compensate for what an output then lacks: ``w_rest -= (w_i - q_i) / U_ii · U_i,rest``, where ``Uᵀ U`` is the inverse
    of ``E xᵀ x``. The scales stay. An output that would not gain by it keeps the nearest codes, so none loses.

    Args:
        matrix: ``[inputs, outputs]`` float32.
        nearest: Its nearest codes, ``[inputs, outputs]``, as ``quantize_weight`` gives them.
        scale: Their scales, ``[outputs]`` or ``[]``.
        moments: ``E xᵀ x`` of the layer's rounded inputs, ``[inputs, inputs]``.
        reduce_range: As ``quantize_weight`` takes it: the codes keep to the same limits.

    Source:
        Frantar et al. 2022, arXiv 2210.17323, at the scales of the nearest codes; the order of the rows is that of the
        authors' ``act_order``.

    Examples:
        >>> import numpy as np
        >>> alike = np.array([[1.0, 0.9], [0.9, 1.0]])  # two inputs that mostly say the same
        >>> weights = np.array([[0.4], [0.4]], np.float32)  # 0.8 of it: one step is nearer than none
        >>> gptq(weights, np.zeros((2, 1), np.int8), np.array([1.0]), alike).tolist()
        [[0], [1]]
    """
    count = len(matrix)
    order = np.argsort(-np.diag(moments), kind="stable")
    factor = _inverse_factor(moments[np.ix_(order, order)])
    left = np.asarray((matrix / scale)[order], np.float32)
    codes = np.zeros((count, left.shape[1]), np.float32)
    known = np.zeros(count, bool)
    most = float(REDUCED_LEVELS if reduce_range is True else LEVELS)
    for start in range(0, count, BLOCK):
        rows = order[start : start + BLOCK]
        errors = np.zeros((len(rows), left.shape[1]), np.float32)
        for place, row in enumerate(rows, start=start):
            low, high = -most, most
            if reduce_range == "pairs" and (row ^ 1) < count and known[row ^ 1]:
                low, high = np.maximum(low, -MIDDLE - codes[row ^ 1]), np.minimum(high, MIDDLE - codes[row ^ 1])
            codes[row], known[row] = np.clip(np.rint(left[place]), low, high), True
            error = (left[place] - codes[row]) / factor[place, place]
            rest = slice(place + 1, start + len(rows))
            left[rest] -= factor[place, rest, None] * error
            errors[place - start] = error
        left[start + len(rows) :] -= factor[start : start + len(rows), start + len(rows) :].T @ errors
    gains = output_errors(matrix, codes, scale, moments) < output_errors(matrix, nearest, scale, moments)
    return np.where(gains, codes, nearest).astype(np.int8)


def output_errors(matrix: Array, codes: Array, scale: Array, moments: Array) -> Array:
    """Return ``E (x (scale q - w))²`` for each output, ``[outputs]``."""
    off = (codes * scale - matrix).astype(np.float32)
    found: Array = (off * (moments.astype(np.float32) @ off)).sum(axis=0)
    return found


def _inverse_factor(moments: Array) -> Array:
    """Return the upper triangular U with ``Uᵀ U`` the inverse of the damped moments, float32."""
    least = float(np.finfo(np.float32).tiny)
    damped = moments + max(DAMPING * float(np.diag(moments).mean()), least) * np.eye(len(moments))
    factor: Array = np.linalg.cholesky(np.linalg.inv(damped)).T
    return factor.astype(np.float32)
