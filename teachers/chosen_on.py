"""What a fine-tuned model was trained and chosen on, as ``teacher.json`` beside it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from eval.files.typed_json import read_typed

FACTS = "teacher.json"
"""What says of a fine-tuned model how it was made."""


class TrainedOn(BaseModel):
    """What a model was fine-tuned on.

    Attributes:
        train: Digest of the examples that it learned from.
        validation: Digest of those that were scored after every epoch.
    """

    train: str | None = None
    validation: str | None = None


class Identity(TrainedOn):
    """What of an identity is read: what one task was trained on, or several tasks by their names."""

    training: dict[str, Any] = {}
    tasks: list[tuple[str, TrainedOn]] = Field(default=[], alias="lessons")


class Facts(BaseModel):
    """What of ``teacher.json`` is read.

    Attributes:
        identity: What it was made from.
        history: An entry an epoch.
        sweep: What a sweep found, if this is the best of one.
        chosen_on: What the base was chosen on.
        thresholds: Those that were chosen.
    """

    identity: Identity = Identity()
    history: list[dict[str, Any]] = []
    sweep: dict[str, Any] | None = None
    chosen_on: dict[str, str] = {}
    thresholds: list[float] = []


def chosen_on(folder: Path | None) -> dict[str, str]:
    """Return what was chosen -> digest of the examples; nothing for a model that says nothing.

    Raises:
        UserError: ``teacher.json`` is damaged.
    """
    file = None if folder is None else folder / FACTS
    if file is None or not file.is_file():
        return {}
    facts: Facts = read_typed(file, Facts, "copy the model folder anew")
    found, training = dict(facts.chosen_on), facts.identity.training
    chooses = picks_epoch(training) and any("score" in row for row in facts.history)
    for name, used in facts.identity.tasks or [("", facts.identity)]:
        said = {
            "training": used.train,
            "best epoch": used.validation if chooses else None,
            "best of a sweep": None if facts.sweep is None else used.validation,
            "thresholds": used.validation if facts.thresholds else None,
        }
        found |= {f"{what} on {name}" if name else what: digest for what, digest in said.items() if digest}
    return found


def picks_epoch(training: dict[str, Any]) -> bool:
    """Whether a training, as plain values, is ended or judged by the scores of its epochs."""
    return training.get("keep", "best") == "best" or training.get("patience") is not None
