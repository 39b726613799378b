"""One step in the life of a model, as plain values: what was done, with what, and what came out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict

from compress.artifact.modified_architecture import writer_for
from teachers.chosen_on import picks_epoch
from teachers.file_digests import digests_of
from teachers.taskmodel import TaskModel

SOURCE = "source"
"""The technique name of the first record of every lineage: the model as it came in."""
HEAD = "head"
"""The technique name of a record of a new head for another kind of task."""
THRESHOLDS = "thresholds"
"""The technique name of a record of thresholds that were chosen for a model as it is."""
SAVED = "saved"
"""The technique name of a record of files that were written otherwise than the record before says, as by another
version of a library, or that no record covers yet."""

USED = {"train": "training", "validation": "best epoch", "selection": "threshold", "calibration": "calibration"}
"""What each role of examples in a record decides."""


class Record(BaseModel):
    """One step in the life of an artifact; plain JSON values only.

    Attributes:
        technique: Name such as ``prune.layers``; ``source`` for the model that came in, ``student`` for a new shape,
            ``head`` for a new task, ``saved`` for files that other libraries wrote.
        version: Version of the technique.
        package: Name and version of the package that gave the technique, such as ``acme-shrink 1.0``; nothing for a
            built-in one.
        config: Every hyper-parameter.
        data: Digests of the examples that were used, by role (train, validation, calibration).
        teacher: Digest of the teacher, if one was used.
        chosen_on: What of the model that came in first, or of the teacher, was chosen -> digest of the examples it was
            chosen on; empty in records of earlier versions.
        seed: What chance was seeded with.
        facts: Numbers worth knowing, such as the training history.
        export_scheme: The 8-bit scheme that exports of the model take (see ``Outcome``); None if it asks for none.
        size_before: Size of the model that went in; None for the first record.
        size_after: Size of the model that came out.
        weights_before: Digest of the weights that went in; None for the first record.
        weights_after: Digest of the weights that came out.
        files: Digests of what came out beside the weights (config, tokenizer, task, structure), by the name of its
            file; empty in records of earlier versions.
        libraries: Versions of the libraries that computed.
        seconds: How long the process took that finished it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    technique: str
    version: int = 1
    package: str = ""
    config: dict[str, Any] = {}
    data: dict[str, str] = {}
    teacher: str | None = None
    chosen_on: dict[str, str] = {}
    seed: int | None = None
    facts: dict[str, Any] = {}
    export_scheme: dict[str, Any] | None = None
    size_before: dict[str, Any] | None = None
    size_after: dict[str, Any] = {}
    weights_before: str | None = None
    weights_after: str
    files: dict[str, str] = {}
    libraries: dict[str, str] = {}
    seconds: float = 0.0

    @property
    def picks_epoch(self) -> bool:
        """Whether some training of the step went by the scores of its epochs."""
        trainings = [block for block in self.config.values() if isinstance(block, dict) and "keep" in block]
        history = self.facts.get("history", ())
        scored = not history or any("score" in row for row in history)
        return scored and (not trainings or any(map(picks_epoch, trainings)))

    @property
    def total_seconds(self) -> float:
        """How long it took, with at least the steps of a training that was interrupted before."""
        return max(self.seconds, float(sum(row.get("seconds", 0.0) for row in self.facts.get("history", ()))))


def choices(lineage: Sequence[Record]) -> dict[str, str]:
    """Return what was learned or chosen on the way to a model -> digest of the examples that decided it."""
    found: dict[str, str] = {}
    for place, record in enumerate(lineage):
        came_in = place == 0 and len(lineage) > 1
        found |= {f"{what}, {SOURCE}" if came_in else what: used for what, used in record.chosen_on.items()}
        told = {role: digest for role, digest in record.data.items() if role in USED}
        if not record.picks_epoch:
            told.pop("validation", None)
        found |= {f"{USED[role]}, {place}. {record.technique}": digest for role, digest in told.items()}
    return found


def size_of(model: TaskModel) -> dict[str, Any]:
    """Return the size of a model as plain JSON values."""
    return asdict(model.size())


def outcome_of(model: TaskModel) -> dict[str, Any]:
    """Return what a record says of the model that came out; its weights must not change any more."""
    return {
        "size_after": size_of(model),
        "weights_after": model.digest,
        "files": digests_of(model, writer_for(model.model)),
        "libraries": library_versions(),
    }


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries whose numbers end up in the weights."""
    return {name: _version(name) for name in ("torch", "transformers", "tokenizers", "numpy")}


@cache
def _version(library: str) -> str:
    from importlib.metadata import version

    return version(library)
