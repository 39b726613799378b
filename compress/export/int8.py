"""The 8-bit scheme of an export: its settings, the rounding of weights, and where a lineage asks for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from eval.errors import did_you_mean

Array = NDArray[Any]
LEVELS = 127
REDUCED_LEVELS = 64
"""Largest weight with ``reduce_range``: 2 * 255 * 64 = 32,640 fits in the 16 bits that AVX2 has for two products."""


class Int8(BaseModel):
    """How a graph becomes 8-bit; the fields are explained in ``compress.quantize.dynamic``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    per_channel: bool = True
    reduce_range: bool = True
    embeddings: bool = True
    activations: Literal["token", "tensor"] = "token"
    exclude: tuple[str, ...] = ()


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


def scheme_of(lineage: Iterable[Any]) -> Int8 | None:
    """Return the scheme that the last record with one asks for, or None: the model is exported in float."""
    found = None
    for record in lineage:
        structure = record["structure"] if isinstance(record, Mapping) else record.structure
        found = structure.get("export", {}).get("int8", found)
    return None if found is None else Int8.model_validate(found)


def quantize_weight(matrix: Array, per_channel: bool = True, reduce_range: bool = True) -> tuple[Array, Array]:
    """Quantize a matrix symmetrically: ``q = round(w / scale)``, ``scale = max|w| / levels``.

    Args:
        matrix: ``[inputs, outputs]`` float32.
        per_channel: One scale an output instead of one for the matrix.
        reduce_range: 64 levels a side instead of 127.

    Returns:
        int8 ``[inputs, outputs]`` and float32 scales ``[outputs]`` or ``[]``.
    """
    levels = REDUCED_LEVELS if reduce_range else LEVELS
    largest = np.abs(matrix).max(axis=0 if per_channel else None)
    scale = np.where(largest > 0, largest / levels, 1).astype(np.float32)
    return np.clip(np.rint(matrix / scale), -levels, levels).astype(np.int8), scale


def quantize_rows(table: Array) -> tuple[Array, Array]:
    """Quantize an embedding table ``[rows, width]``; return int8 of that shape and float32 scales ``[rows, 1]``."""
    quantized, scale = quantize_weight(table.T, per_channel=True, reduce_range=False)
    return np.ascontiguousarray(quantized.T), scale[:, None]
