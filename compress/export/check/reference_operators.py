"""Operators that onnx's reference lacks, or has only for a single number or a newer version, in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.reference.op_run import OpRun

Array = NDArray[Any]


class Erf(OpRun):  # type: ignore[misc]
    """Onnx's own takes numbers one by one."""

    op_domain = ""
    op_schema = onnx.defs.get_schema("Erf")

    def _run(self, x: Array) -> tuple[Array]:
        from scipy.special import erf

        return (erf(x).astype(x.dtype),)


class GatherElements(OpRun):  # type: ignore[misc]
    """Onnx's own takes neither many rows nor indices that are shorter than the data."""

    op_domain = ""
    op_schema = onnx.defs.get_schema("GatherElements")

    def _run(self, data: Array, indices: Array, axis: int = 0) -> tuple[Array]:
        axis %= data.ndim
        part = tuple(slice(None) if place == axis else slice(size) for place, size in enumerate(indices.shape))
        return (np.take_along_axis(data[part], indices, axis),)


class DequantizeLinear(OpRun):  # type: ignore[misc]
    """Onnx has it from version 19 of the operators on; ``scale`` is one number or one for each place of ``axis``."""

    op_domain = ""
    op_schema = onnx.defs.get_schema("DequantizeLinear", 13)

    def _run(self, x: Array, scale: Array, zero: Array | None = None, axis: int = 1) -> tuple[Array]:
        shape = [1] * x.ndim
        if np.ndim(scale):
            shape[axis] = -1
        steps = x.astype(np.int32) - (0 if zero is None else zero.astype(np.int32).reshape(shape))
        return ((steps * np.reshape(scale, shape)).astype(np.float32),)


class MatMulNBits(OpRun):  # type: ignore[misc]
    """ONNX Runtime's product with a matrix of 4- or 8-bit codes, a scale for each block of a column's weights."""

    op_domain = "com.microsoft"

    def _run(
        self,
        x: Array,
        codes: Array,
        scales: Array,
        zeros: Array | None = None,
        *more: Array,
        K: int = 0,  # noqa: N803  names of the operator's attributes
        N: int = 0,  # noqa: N803
        bits: int = 4,
        block_size: int = 32,
        accuracy_level: int = 0,
    ) -> tuple[Array]:
        steps = _unpacked(codes.reshape(N, -1), bits).astype(np.float32).reshape(N, -1, block_size)
        blocks = steps.shape[1]
        middle: Any = np.float32(2 ** (bits - 1))
        if zeros is not None and zeros.size:
            middle = _unpacked(zeros.reshape(N, -1), bits)[:, :blocks, None].astype(np.float32)
        matrix = ((steps - middle) * scales.reshape(N, blocks, 1)).reshape(N, -1)[:, :K]
        return (np.matmul(x, matrix.T).astype(np.float32),)


def _unpacked(codes: Array, bits: int) -> Array:
    """Return the codes in the bytes of each row, ``[rows, bytes * 8 / bits]``, the low bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    found: Array = (codes[:, :, None] >> shifts) & np.uint8(2**bits - 1)
    return found.reshape(len(codes), -1)


OPERATORS = [Erf, GatherElements, DequantizeLinear, MatMulNBits]
"""What ``ReferenceEvaluator`` takes as ``new_ops``."""
