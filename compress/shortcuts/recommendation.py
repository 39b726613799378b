"""What ``docs/choosing.md`` recommends for a student of fewer layers: which layers, what loss, how long."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from eval.kinds.kind_registry import kind_of

EPOCHS, LEARNING_RATE, BATCH_SIZE = 4, 2.0e-4, 32
"""The best setting for students of two and three layers on SST-2 in our comparisons."""
LEAST_UPDATES, MOST_EPOCHS = 300, 20
"""Optimizer steps that few examples are repeated for, and the most repetitions."""


@dataclass(frozen=True)
class Recommendation:
    """A student and its training.

    Attributes:
        layers: How many of the teacher's layers it starts from, evenly spread, or which.
        technique: The step that trains it.
        settings: The step's fields.
        epochs: Passes over the examples.
        learning_rate: Peak learning rate.
        batch_size: Examples of an optimizer step.
        why: A sentence about each choice that depends on the model or the data.
    """

    layers: int | tuple[int, ...]
    technique: str
    settings: dict[str, Any]
    epochs: int = EPOCHS
    learning_rate: float = LEARNING_RATE
    batch_size: int = BATCH_SIZE
    why: tuple[str, ...] = ()


def recommend(kind: str, layers: int, teacher_layers: int | None = None, examples: int | None = None) -> Recommendation:
    """Return what is recommended for a student of so many layers.

    Args:
        kind: Kind of task.
        layers: Layers of the student.
        teacher_layers: Layers of the teacher, if they are known.
        examples: Training examples, with labels and without, if they are known.

    Examples:
        >>> recommend("classification", 3, teacher_layers=6).layers, recommend("classification", 2, 6).layers
        (3, (0, 1))
        >>> recommend("classification", 3, 6, examples=60_000).epochs, recommend("classification", 3, 6, 500).epochs
        (4, 19)
    """
    first = teacher_layers is not None and 3 * layers <= teacher_layers
    updates = None if not examples else math.ceil(examples / BATCH_SIZE)
    epochs = EPOCHS if updates is None else min(MOST_EPOCHS, max(EPOCHS, math.ceil(LEAST_UPDATES / updates)))
    why = ["a third of the layers or fewer: the first ones"] if first else []
    if epochs > EPOCHS:
        why.append(f"{examples:,} examples are few: {epochs} epochs, so that there are about {LEAST_UPDATES} updates")
    return Recommendation(
        layers=tuple(range(layers)) if first else layers, epochs=epochs, why=tuple(why), **_step(kind)
    )


def _step(kind: str) -> dict[str, Any]:
    asked = kind_of(kind)
    if asked.masks:
        return {"technique": "distill.distilbert", "settings": {"temperature": 2.0}}
    if asked.vectors:
        return {"technique": "distill.embedding", "settings": {"mse": 1.0, "similarity": 1.0}}
    return {"technique": "distill.logits", "settings": {"loss": "mse", "alpha": 1.0}}
