"""What ``docs/choosing.md`` recommends for a student of fewer layers and its teacher: layers, loss, time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from eval.kinds.kind_registry import kind_of

EPOCHS, LEARNING_RATE, BATCH_SIZE = 4, 2.0e-4, 32
"""The best setting for students of two and three layers on SST-2 in our comparisons."""
MANY_CLASSES = 30
"""Labels from which on probabilities are learned better than squared logits (77 intents: 0.857 against 0.839)."""
LEAST_UPDATES, MOST_EPOCHS = 300, 20
"""Optimizer steps that few examples are repeated for, and the most repetitions."""
FINETUNE_EPOCHS, BASE_WIDTH = 3, 768
"""Epochs of a teacher on enough examples, and the hidden size from which on it takes the papers' rate of 5e-5. Narrower
networks learn too slowly with it; the teachers of docs/results that are made of MiniLM take twice as much or more."""

LABELS = "distill.labels"


@dataclass(frozen=True)
class Recommendation:
    """A student and its training.

    Attributes:
        layers: How many of the teacher's layers it starts from, evenly spread, or which; of its decoder's where that
            writes the answer.
        technique: The step that trains it.
        settings: The step's fields.
        epochs: Passes over the examples.
        learning_rate: Peak learning rate.
        batch_size: Examples of an optimizer step.
        why: A sentence about each choice that depends on the model or the data, or that the recipe makes.
    """

    layers: int | tuple[int, ...]
    technique: str
    settings: dict[str, Any]
    epochs: int = EPOCHS
    learning_rate: float = LEARNING_RATE
    batch_size: int = BATCH_SIZE
    why: tuple[str, ...] = ()

    @property
    def trainings(self) -> int:
        """How often a student is trained."""
        return len(self.settings.get("of", (None,)))


def recommend(
    kind: str,
    layers: int,
    teacher_layers: int | None = None,
    examples: int | None = None,
    classes: int | None = None,
    quick: bool = False,
) -> Recommendation:
    """Return what is recommended for a student of so many layers.

    Args:
        kind: Kind of task.
        layers: Layers of the student.
        teacher_layers: Layers of the teacher, if they are known.
        examples: Training examples, with labels and without, if they are known.
        classes: How many labels there are to choose from, if it is known.
        quick: Whether there is no time to train the student on labels only as well, and to keep the better one.

    Examples:
        >>> recommend("classification", 3, teacher_layers=6).layers, recommend("classification", 2, 6).layers
        (3, (0, 1))
        >>> recommend("classification", 3, 6, examples=60_000).epochs, recommend("classification", 3, 6, 500).epochs
        (4, 19)
        >>> recommend("classification", 3, 6).technique, recommend("classification", 3, 6, quick=True).technique
        ('distill.best_of', 'distill.logits')
        >>> recommend("classification", 3, 6, 100).why[0]
        '100 examples are few: 20 epochs, so that there are about 80 optimizer steps'
        >>> recommend("classification", 3, 6, classes=151, quick=True).settings
        {'temperature': 2.0, 'alpha': 0.5}
        >>> recommend("seq2seq", 1, 3).technique
        'distill.sequence'
    """
    writes = kind_of(kind).writes
    first = not writes and teacher_layers is not None and 3 * layers <= teacher_layers
    epochs = _repeated(EPOCHS, examples)
    why = ["a third of the layers or fewer: the first ones"] if first else []
    why += ["the decoder alone loses layers: it runs once a token, the encoder once a text"] if writes else []
    if examples and epochs > EPOCHS:
        updates = min(LEAST_UPDATES, epochs * math.ceil(examples / BATCH_SIZE))
        why.append(f"{examples:,} examples are few: {epochs} epochs, so that there are about {updates} optimizer steps")
    step = _step(kind, classes or 0)
    if (classes or 0) >= MANY_CLASSES and kind_of(kind).labelled:
        why.append(f"{classes} labels are many: soft targets, which did better there than squared logits")
    if not quick and step["technique"] == "distill.logits":
        step = {"technique": "distill.best_of", "settings": {"of": [{"distill.logits": step["settings"]}, LABELS]}}
        why.append("whether the teacher helps beyond the labels is tried on the examples that choose; the better stays")
    return Recommendation(layers=tuple(range(layers)) if first else layers, epochs=epochs, why=tuple(why), **step)


def finetuning(width: int | None = None, examples: int | None = None) -> dict[str, Any]:
    """Return how a teacher is fine-tuned, as fields of ``teacher.finetune``.

    Args:
        width: Its hidden size, if it is known.
        examples: Labelled training examples, if they are known.

    Examples:
        >>> finetuning(768, 50_000)
        {'epochs': 3, 'learning_rate': 5e-05, 'batch_size': 32}
        >>> finetuning(384, 756)
        {'epochs': 13, 'learning_rate': 0.0001, 'batch_size': 32}
    """
    rate = 5.0e-5 if width is None or width >= BASE_WIDTH else 1.0e-4
    return {"epochs": _repeated(FINETUNE_EPOCHS, examples), "learning_rate": rate, "batch_size": BATCH_SIZE}


def _repeated(epochs: int, examples: int | None) -> int:
    """Return so many epochs, or more where the examples are so few that they give too few optimizer steps."""
    if not examples:
        return epochs
    return min(MOST_EPOCHS, max(epochs, math.ceil(LEAST_UPDATES / math.ceil(examples / BATCH_SIZE))))


def _step(kind: str, classes: int) -> dict[str, Any]:
    asked = kind_of(kind)
    if asked.truth is None:
        return {"technique": "distill.distilbert", "settings": {"temperature": 2.0}}
    if asked.writes:
        return {"technique": "distill.sequence", "settings": {"beams": 5}}
    if asked.vectors:
        return {"technique": "distill.embedding", "settings": {"mse": 0.0, "cosine": 1.0, "similarity": 1.0}}
    if asked.labelled and classes >= MANY_CLASSES:
        return {"technique": "distill.logits", "settings": {"temperature": 2.0, "alpha": 0.5}}
    return {"technique": "distill.logits", "settings": {"loss": "mse", "alpha": 0.5}}
