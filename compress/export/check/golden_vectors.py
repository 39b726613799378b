"""Golden test vectors: inputs with the answers they must get, in every export, so that any runtime can be checked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, FiniteFloat, field_validator

from compress.export.check.gate import LEAST_LIMIT, TOLERANCE
from compress.export.check.probes import odd_examples, synthetic_examples
from eval.files.writing import atomic_write
from eval.inference import Predictor

Array = NDArray[Any]
FILE = "conformance.json"
FORMAT = 1
REAL = 8
"""Real examples, or synthetic ones, beside the odd ones."""
CHANNELS = 64
"""Numbers of a token that are kept; a masked-language head has one per subword token."""
INT8_MARGIN = 0.05
"""Largest difference between runtimes of an 8-bit graph, relative to the largest logit: the last bit of a float, which
another order of additions changes, decides a whole step."""


Numbers = list[FiniteFloat] | list[Annotated[list[FiniteFloat], Field(min_length=1)]]
Ids = list[Annotated[int, Field(ge=0, lt=2**31)]]


class GoldenVector(BaseModel):
    """One input with its answer; see ``write_golden_vectors``."""

    example: dict[str, Any]
    window: int = Field(ge=0)
    inputs: dict[str, Ids]
    logits: Numbers
    torch: Numbers

    @field_validator("inputs")
    @classmethod
    def _has_ids(cls, inputs: dict[str, Ids]) -> dict[str, Ids]:
        if "input_ids" not in inputs:
            raise ValueError("input_ids is missing")
        return inputs

    @field_validator("logits", "torch")
    @classmethod
    def _even(cls, numbers: Any) -> Any:
        if len({len(row) for row in numbers if isinstance(row, list)}) > 1:
            raise ValueError("its rows must be of one length")
        return numbers


class GoldenVectors(BaseModel):
    """What ``conformance.json`` holds."""

    format: Literal[1]
    exact: bool
    limit: FiniteFloat = Field(ge=0)
    rows: list[GoldenVector]


def write_golden_vectors(
    folder: Path, export: Predictor, model: Predictor, examples: Sequence[Mapping[str, Any]], exact: bool
) -> None:
    """Write ``conformance.json`` into an export folder.

    It lists rows: ``example`` (the text), ``window`` (which input of a long one), ``inputs`` (its ids, without
    padding), ``logits`` (what the export gave them in ONNX Runtime here) and ``torch`` (what the torch model did), both
    ``[C]`` or ``[length, C]``; and ``limit``, the largest difference to ``logits`` that a correct runtime may have.
    Logits may be small beside the noise of 8 bits, so there the limit is no less than the largest difference of
    ``logits`` and ``torch``: a step that another runtime takes the other way moves an answer as far as rounding does.

    Args:
        folder: The export, whose own answers are taken.
        export: It, ready to answer.
        model: The torch model.
        examples: Real examples; synthetic ones take their place if there are none.
        exact: Whether the graph is in float; 8-bit ones get a wider limit.
    """
    encoder = model.encoder
    some = [*examples[:REAL]] or synthetic_examples(encoder, REAL)
    rows, scale, rounded = [], 0.0, 0.0
    for example in [*some, *odd_examples(encoder)]:
        for window, feature in enumerate(encoder.encode([example])):
            inputs = encoder.collate([feature])
            logits, expected = (each.forward(inputs)[0][..., :CHANNELS] for each in (export, model))
            scale = max(scale, float(np.abs(expected).max(initial=0)))
            rounded = max(rounded, float(np.abs(logits - expected).max(initial=0)))
            ids = {name: array[0].tolist() for name, array in inputs.items()}
            answers = {"logits": _plain(logits), "torch": _plain(expected)}
            rows.append({"example": encoder.kind.plain(example), "window": window, "inputs": ids, **answers})
    limit = max(LEAST_LIMIT, (TOLERANCE if exact else INT8_MARGIN) * scale)
    if not exact:
        limit = max(limit, rounded)
    content = {"format": FORMAT, "exact": exact, "limit": float(f"{limit:.3g}"), "rows": rows}
    atomic_write(folder / FILE, (json.dumps(content, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace"))


def _plain(logits: Array) -> Any:
    return [_plain(part) for part in logits] if logits.ndim else float(f"{logits:.7g}")
