"""The 8-bit scheme of an export: its settings, the rounding of weights, and where a lineage asks for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from eval.errors import did_you_mean

Array = NDArray[Any]
LEVELS = 127
MIDDLE = 128
"""The uint8 that stands for 0 in a symmetric range."""
SAME_LEVEL = 1e-3
"""Part of a step by which a number may miss a level that it is on."""
LEAST_RANGE = 1e-12
"""Range of activations that are all 0, so that nothing is divided by 0."""
REDUCED_LEVELS = 64
"""Largest weight of 7 bits: 2 * 255 * 64 = 32,640 fits in the 16 bits that AVX2 has for the sum of two products."""
ReducedRange = bool | Literal["pairs"]
"""What keeps such sums within 16 bits: smaller ``pairs`` of weights; smaller weights (true); or nothing (false)."""


class Int8(BaseModel):
    """How a graph becomes 8-bit; the fields are explained in ``compress.quantize.dynamic``.

    Attributes:
        per_channel: Per-channel scales.
        reduce_range: ``pairs``: weights of 8 bits, of which no two neighbours exceed 128 together; true: of 7 bits.
        embeddings: Whether tables become 8-bit.
        activations: ``token``, ``tensor``, or ``static``: those of ``ranges``; what has none stays in float.
        by_token: Modules with per-token ranges where the others have per-tensor ones; patterns, as in ``exclude``.
        tables: One scale for each ``row`` of a table, or one for the whole ``tensor``.
        exclude: Modules that stay in float.
        ranges: Name of a module, or of its node where it has several -> least and largest input; see ``affine``.
        outputs: Name of a module -> largest output, rounded to 127 steps a side of it.
        smooth: As ``ranges``, -> what each channel of the input is divided by first, and its weights multiplied.
        bias: As ``ranges``, -> what is added to each output: the mean that rounding takes from it.
        codes: As ``ranges``, -> the int8 codes of the (smoothed) weights ``[inputs, outputs]``, row by row, where they
            are not the nearest; see ``compress.quantize.gptq``. They stand in the graph alone, in no record.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    per_channel: bool = True
    reduce_range: ReducedRange = "pairs"
    embeddings: bool = True
    activations: Literal["token", "tensor", "static"] = "token"
    by_token: tuple[str, ...] = ()
    tables: Literal["row", "tensor"] = "row"
    exclude: tuple[str, ...] = ()
    ranges: dict[str, tuple[float, float]] = {}
    outputs: dict[str, float] = {}
    smooth: dict[str, tuple[float, ...]] = {}
    bias: dict[str, tuple[float, ...]] = {}
    codes: dict[str, bytes] = Field(default={}, exclude=True, repr=False)

    @classmethod
    def by_node(cls) -> tuple[str, ...]:
        """Return the fields that say something of each layer with a static range."""
        return ("ranges", "smooth", "bias", "codes")

    @property
    def rounding(self) -> str:
        """How weights are rounded."""
        return "gptq" if self.codes else "nearest"

    def quantized(self, matrix: Array, codes: bytes | None = None) -> tuple[Array, Array]:
        """Return the codes of a matrix, which are the nearest if none were chosen, and their scales."""
        nearest, scale = quantize_weight(matrix, self.per_channel, self.reduce_range)
        return nearest if codes is None else np.frombuffer(codes, np.int8).reshape(nearest.shape), scale


def is_excluded(module: str, patterns: Iterable[str]) -> bool:
    """Whether a module, or one that holds it, is named by a pattern such as ``*.layer.0`` or ``*.query``."""
    return any(fnmatchcase(module, pattern) or fnmatchcase(module, f"{pattern}.*") for pattern in patterns)


def unmatched(patterns: Iterable[str], modules: Sequence[str]) -> list[str]:
    """Return a sentence for each pattern that names no module of the network."""
    problems = []
    for pattern in patterns:
        if not any(fnmatchcase(module, pattern) for module in modules):
            hint = did_you_mean(pattern, modules)
            # Without a near one it lists them all, which are hundreds.
            hint = hint if hint.startswith("; did") else f"; they have names such as {modules[len(modules) // 2]!r}"
            problems.append(f"exclude: no module is called {pattern!r}{hint}")
    return problems


def packed_before(network: Any) -> list[str]:
    """Return why there is nothing to quantize in a network, whose layers are packed; else nothing."""
    from torch import nn

    from teachers.anatomy.encoder import layer_count, layers

    inside = [part for layer in (layers(network) if layer_count(network) else ()) for part in layer.modules()]
    if any(type(part).__name__ == "PackedLinear" for part in inside) and not any(type(p) is nn.Linear for p in inside):
        return ["its layers are packed by an earlier step, so there is nothing left to quantize; leave one of them out"]
    return []


def scheme_of(lineage: Iterable[Any]) -> Int8 | None:
    """Return the scheme that the last record with one asks for, or None: the model is exported in float."""
    asked = [record.export_scheme for record in lineage if record.export_scheme is not None]
    return Int8.model_validate(asked[-1]) if asked else None


def quantize_weight(
    matrix: Array, per_channel: bool = True, reduce_range: ReducedRange = "pairs"
) -> tuple[Array, Array]:
    """Quantize a matrix symmetrically: ``q = round(w / scale)``, ``scale = max|w| / levels``.

    Processors without VNNI add the products of inputs 0 and 1, 2 and 3 and so on in 16 bits, which hold 128 * 255.
    With ``pairs``, ``scale = max(|w|, |w_0 + w_1|) / 127`` over the weights and these pairs, so that
    ``|q_0 + q_1| <= 127 + 1``, the 1 being what rounding may add. A pair that large is rare, and the steps are nearly
    as small as those of 8 bits.

    Args:
        matrix: ``[inputs, outputs]`` float32.
        per_channel: Per-channel scales instead of one for the matrix.
        reduce_range: Which pairs of weights there may be; ``True``: 64 levels a side instead of 127.

    Returns:
        int8 ``[inputs, outputs]`` and float32 scales ``[outputs]`` or ``[]``.

    Examples:
        >>> import numpy as np
        >>> alone = np.array([[1.0], [0.0], [0.0], [-0.2]], dtype=np.float32)
        >>> [quantize_weight(alone, reduce_range=how)[0].T.tolist() for how in (True, "pairs", False)]
        [[[64, 0, 0, -13]], [[127, 0, 0, -25]], [[127, 0, 0, -25]]]
    """
    levels = REDUCED_LEVELS if reduce_range is True else LEVELS
    largest = np.abs(matrix).max(axis=0 if per_channel else None)
    if reduce_range == "pairs" and len(matrix) > 1:
        even = matrix[: len(matrix) // 2 * 2]
        largest = np.maximum(largest, np.abs(even[::2] + even[1::2]).max(axis=0 if per_channel else None))
    scale = np.where(largest > 0, largest / levels, 1).astype(np.float32)
    return np.clip(np.rint(matrix / scale), -levels, levels).astype(np.int8), scale


def quantize_rows(table: Array, per_row: bool = True) -> tuple[Array, Array]:
    """Quantize an embedding table ``[rows, width]``; return int8 of that shape and float32 scales ``[rows, 1]``.

    A table that has 64 levels a side already keeps them, as that of Q8BERT with a head that is tied to it.

    Args:
        table: float32.
        per_row: Per-row scales instead of one for all, which then is ``[]``.
    """
    quantized, scale = quantize_weight(table.T, per_channel=per_row, reduce_range=True)
    if not np.all(np.abs(quantized * scale - table.T) <= SAME_LEVEL * scale):
        quantized, scale = quantize_weight(table.T, per_channel=per_row, reduce_range=False)
    return np.ascontiguousarray(quantized.T), scale[:, None] if per_row else scale


def affine(low: float, high: float) -> tuple[float, int]:
    """Return scale and zero point of uint8 for a range: ``x ≈ scale · (u - zero)``.

    A symmetric range has 127 steps a side of 128. Any other is widened to hold 0, and then has 255 steps.
    """
    if low == -high:
        return max(high, LEAST_RANGE) / LEVELS, MIDDLE
    low, high = min(low, 0.0), max(high, 0.0)
    scale = max(high - low, LEAST_RANGE) / 255
    return scale, round(-low / scale)


def rounded(x: Array, low: float, high: float) -> Array:
    """Return what 8 bits leave of ``x`` with the range [low, high]: ``scale · (u - zero)``, of the same shape.

    Examples:
        >>> import numpy as np
        >>> rounded(np.array([-9.0, 0.3, 1.0]), -127.0, 127.0)
        array([-9.,  0.,  1.])
    """
    scale, zero = affine(low, high)
    least = 1 if low == -high else 0  # as the graph clips it
    steps: Array = np.clip(np.rint(x / scale) + zero, least, 255) - zero
    return scale * steps
