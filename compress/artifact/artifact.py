"""What flows through a recipe: a model that knows how it came to be."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from compress.artifact.modified_architecture import writer_for
from eval.errors import UserError
from eval.naming import public_name
from eval.task import Task, TaskSpec
from teachers.file_digests import digests_of
from teachers.taskmodel import TaskModel, with_head

SOURCE = "source"
"""The technique name of the first record of every lineage: the model as it came in."""
HEAD = "head"
"""The technique name of a record of a new head for another kind of task."""
SAVED = "saved"
"""The technique name of a record of files that were written otherwise than the record before says, as by another
version of a library, or that no record covers yet."""


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
        seed: What chance was seeded with.
        structure: Enough to rebuild the shape.
        facts: Numbers worth knowing, such as the training history.
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
    seed: int | None = None
    structure: dict[str, Any] = {}
    facts: dict[str, Any] = {}
    size_before: dict[str, Any] | None = None
    size_after: dict[str, Any] = {}
    weights_before: str | None = None
    weights_after: str
    files: dict[str, str] = {}
    libraries: dict[str, str] = {}
    seconds: float = 0.0

    @property
    def total_seconds(self) -> float:
        """How long it took, with at least the updates of a training that was interrupted before."""
        return max(self.seconds, float(sum(row.get("seconds", 0.0) for row in self.facts.get("history", ()))))


@dataclass(frozen=True)
class Artifact(TaskModel):
    """A model, its tokenizer, its task, and the chain of records that led to it.

    Attributes:
        lineage: Records, oldest first; each one's ``weights_before`` is the ``weights_after`` of the one before.
    """

    lineage: tuple[Record, ...] = ()

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path,
        task: Task | TaskSpec | None = None,
        *,
        seed: int = 0,
        accept_incomplete: bool = False,
    ) -> Artifact:
        """Load an artifact folder with its lineage, or any stock model folder or hub name as a new source.

        Args:
            source: The folder or name.
            task: What is asked; None takes what the model was made for. An artifact for another kind of task gets a
                new head and a record of it.
            seed: Seeds a new head.
            accept_incomplete: Whether weights that are missing, unexpected, of another shape or not finite are only
                logged; for standard Hugging Face folders alone.

        Raises:
            UserError: If the folder is missing, damaged, incomplete, or its lineage does not fit its weights.
        """
        from compress.artifact.store import load_model

        spec = task.spec if isinstance(task, Task) else task
        found = load_model(source, spec, seed, accept_incomplete=accept_incomplete)
        return cls.from_model(found, origin=public_name(str(source)))

    @classmethod
    def from_model(cls, model: TaskModel, origin: str = "memory") -> Artifact:
        """Start a lineage at a model that was not made here."""
        if isinstance(model, cls):
            return model
        record = Record(technique=SOURCE, config={"origin": origin}, **outcome_of(model))
        return cls(model.model, model.tokenizer, model.task, name=model.name, folder=model.folder, lineage=(record,))

    def with_task(self, task: TaskSpec, seed: int = 0) -> Artifact:
        """Return a copy of the encoder with a new head for another kind of task, and a record that says so.

        Args:
            task: What the copy answers.
            seed: Seeds the head.

        Raises:
            UserError: If the family has no head for this kind of task, or the network is not stock any more.
        """
        from compress.artifact.structure import structure_of

        if structure_of(self.model):
            raise UserError(
                f"{self.name}: its parts are no longer those of a stock network, so it cannot get a head for "
                f"{task.kind}; give it its task before the steps that change its parts"
            )
        started = time.perf_counter()
        model = with_head(self, task, seed)
        record = Record(
            technique=HEAD,
            config={"kind": task.kind, "labels": list(task.labels), "from": self.task.kind},
            seed=seed,
            size_before=self.lineage[-1].size_after,
            weights_before=self.lineage[-1].weights_after,
            **outcome_of(model),
            seconds=round(time.perf_counter() - started, 3),
        )
        return Artifact(model.model, model.tokenizer, task, name=self.name, lineage=(*self.lineage, record))

    def save(self, folder: str | Path) -> Path:
        """Write a Hugging Face folder with ``lineage.json`` and a model card; beside, then renamed."""
        from compress.artifact.store import save

        return save(self, folder)

    def history(self) -> str:
        """Return the lineage as a table in plain text."""
        lines = [f"{'step':<24}{'parameters':>14}{'MB':>9}{'seconds':>10}  config"]
        for record in self.lineage:
            size = record.size_after
            shown = {key: value for key, value in record.config.items() if key != "training" and value is not None}
            config = ", ".join(f"{key}={value}" for key, value in shown.items())
            lines.append(
                f"{record.technique:<24}{size.get('parameters', 0):>14,}{size.get('bytes', 0) / 1e6:>9.1f}"
                f"{record.total_seconds:>10.1f}  {config[:100]}"
            )
        return "\n".join(lines)


def size_of(model: TaskModel) -> dict[str, Any]:
    """Return the size of a model as plain JSON values."""
    from dataclasses import asdict

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
