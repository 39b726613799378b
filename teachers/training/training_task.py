"""What the training loop trains on: a student, rows of data, a loss, and what watches the student."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from eval.errors import UserError
from eval.task import Examples
from teachers.data.batches import LengthGroupedBatches, WholeGroupBatches
from teachers.data.encoded_dataset import Batch
from teachers.losses.loss import Loss, Objective
from teachers.signals.model_teacher import TeacherSource
from teachers.taskmodel import TaskModel
from teachers.training.config import Training
from teachers.training.monitor import Monitor
from teachers.training.scoring import rows_of


class Batches(Protocol):
    """Rows of training data, which are asked for by number; ``EncodedDataset`` is the usual one.

    Attributes:
        lengths: Tokens of each row.
    """

    lengths: Any

    @property
    def digest(self) -> str:
        """Recognises the data."""
        ...

    def batch(self, rows: Sequence[int], epoch: int = 0, progress: float = 0.0) -> Batch:
        """Return rows as tensors; epochs may differ in what chance decides."""
        ...


class Watching(Protocol):
    """Looks at a student after every epoch; ``teachers.training.monitor.Monitor`` is the usual one."""

    def figures(self) -> dict[str, Any]:
        """Return ``scores`` by name and ``score``, the one that decides, if there are any."""
        ...

    def refuse_collapse(self, step: int, learning_rate: float) -> None:
        """Stop a training that no longer leads anywhere."""
        ...


@dataclass
class BoundTask:
    """A training task that is ready to be trained on.

    Attributes:
        student: What is trained.
        rows: What it learns from.
        loss: What is minimised.
        name: As in ``TrainingTask``.
        watch: Makes what looks at the student, once it stands on its device; None looks at nothing.
    """

    student: TaskModel
    rows: Batches
    loss: Loss
    name: str = ""
    watch: Callable[[], Watching | None] = lambda: None

    @property
    def prefix(self) -> str:
        """What stands before the names of its losses."""
        return f"{self.name}." if self.name else ""

    def batches(self, training: Training, seed: int) -> LengthGroupedBatches:
        """Return which rows stand together."""
        kind = WholeGroupBatches if self.loss.whole_groups else LengthGroupedBatches
        return kind(self.rows.lengths, training.batch_size, seed, training.group_by_length, self.loss.groups)


@dataclass(frozen=True)
class TrainingTask:
    """One task of a training.

    Attributes:
        student: What is trained.
        examples: What it learns from.
        objective: What is minimised.
        validation: Scored after every epoch.
        teacher: Whose answers are compared with the student's.
        name: Stands before the names of its losses and scores, where there are several training tasks.
    """

    student: TaskModel
    examples: Examples
    objective: Objective
    validation: Examples | None = None
    teacher: TeacherSource | None = None
    name: str = ""

    def bind(self, seed: int) -> BoundTask:
        """Encode the examples and tie the objective to them.

        Raises:
            UserError: If there is nothing to train on.
        """
        examples = self.objective.select(self.student.task, self.examples)
        if not len(examples):
            raise UserError(f"nothing to train on: {examples.name} is empty")
        rows = rows_of(self.student, examples, seed)
        return BoundTask(self.student, rows, self.objective.bind(self.student, rows), self.name, self._watch)

    def _watch(self) -> Monitor | None:
        if self.validation is None or not len(self.validation):
            return None
        return Monitor(self.student, self.validation, self.teacher)


class Learnable(Protocol):
    """What ``learn`` trains on: a ``TrainingTask``, or anything else that can be bound."""

    def bind(self, seed: int) -> BoundTask:
        """Make it ready."""
        ...
