"""What training minimises: the base of every objective and of its loss, and the task's own loss."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor, nn

from eval.kinds.registry import kind_of
from eval.task import Examples, TaskSpec
from teachers.data.encoded_dataset import Batch, Rows, labelled
from teachers.signals.hooks import NOTHING, Signals, Wanted

if TYPE_CHECKING:
    from teachers.taskmodel import TaskModel


class Loss:
    """An objective that is tied to one student and its rows; the defaults are those of a mean over rows.

    A batch may be cut into pieces (``gradient accumulation``, several processes). Its terms are then weighted so that
    the update is that of the whole batch, which needs to know what each term is a mean of: rows, unless ``counts`` says
    otherwise. A loss that compares the rows of a batch with each other sets ``groups`` or ``whole_batch``.

    Attributes:
        reads: What of the student is read.
        modules: Parameters that are trained beside the student's, such as projections, and then thrown away.
        groups: A number for each row, if rows of one number shall meet in a batch; pieces never part them.
        whole_groups: Whether the border between two batches may not part them either.
        whole_batch: Whether the terms are not means over parts of a batch; outputs of all pieces are then gathered
            before the loss is computed.
    """

    reads: Wanted = NOTHING
    modules: nn.Module = nn.Module()
    groups: Sequence[int] | None = None
    whole_groups: bool = False
    whole_batch: bool = False

    def prepare(self, batch: Batch) -> Batch:
        """Return the batch as the student shall see it."""
        return batch

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Return over how many things (tokens, labels, pairs) each term is a mean; rows, for terms not named here."""
        del batch
        return {}

    def __call__(self, student: Signals, batch: Batch) -> dict[str, Tensor]:
        """Return the terms of the loss, already weighted; their sum is minimised."""
        raise NotImplementedError(f"{type(self).__name__} does not implement __call__")


class WrappedLoss(Loss):
    """A loss with something beside it; whatever a subclass does not change is the inner loss's own.

    Args:
        inner: The loss.
        beside: Modules that are trained beside the student, in addition to the loss's own.
    """

    def __init__(self, inner: Loss, beside: Iterable[nn.Module] = ()) -> None:
        self.inner = inner
        self.reads, self.modules = inner.reads, nn.ModuleList([inner.modules, *beside])
        self.groups, self.whole_groups, self.whole_batch = inner.groups, inner.whole_groups, inner.whole_batch

    def prepare(self, batch: Batch) -> Batch:
        """Return the batch as the student shall see it."""
        return self.inner.prepare(batch)

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Return over how many things each term is a mean."""
        return self.inner.counts(batch)

    def __call__(self, student: Signals, batch: Batch) -> dict[str, Tensor]:
        """Return the terms of the inner loss."""
        return self.inner(student, batch)


class Objective(Protocol):
    """A description of a loss, such as a distillation technique; it becomes a ``Loss`` by being bound.

    Subclass it for the defaults.
    """

    def select(self, spec: TaskSpec, examples: Examples) -> Examples:
        """Return the examples that it learns from; all by default.

        Raises:
            UserError: If it learns from none.
        """
        del spec
        return examples

    def bind(self, student: TaskModel, rows: Rows) -> Loss:
        """Prepare for these rows: compute and cache teacher signals, make projections."""
        raise NotImplementedError(f"{type(self).__name__} does not implement bind")


@dataclass(frozen=True)
class WrappedObjective(Objective):
    """An objective with something beside it, which learns from the same examples.

    Attributes:
        objective: The objective.
    """

    objective: Objective

    def select(self, spec: TaskSpec, examples: Examples) -> Examples:
        """Return the examples that the objective learns from."""
        return self.objective.select(spec, examples)


@dataclass
class BoundTaskLoss(Loss):
    """The loss of the labels themselves."""

    spec: TaskSpec
    reads: Wanted = NOTHING

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Return how many labels there are, or their weight."""
        return {"task": task_count(self.spec, batch)}

    def __call__(self, student: Signals, batch: Batch) -> dict[str, Tensor]:
        """Return ``{"task": …}``."""
        return {"task": task_loss(self.spec, student.logits, batch)}


@dataclass(frozen=True)
class TaskLoss(Objective):
    """Cross-entropy or mean squared error against the labels; the default objective of everything that trains.

    For embedding it is the loss of a Siamese encoder that fits the labels of the pairs, see ``teachers.losses.siamese``.
    """

    def select(self, spec: TaskSpec, examples: Examples) -> Examples:
        """Return the examples with a label."""
        return labelled(spec, examples)

    def bind(self, student: TaskModel, rows: Rows) -> Loss:
        """Return the loss of the student's own task."""
        if kind_of(student.task.kind).vectors:
            from teachers.losses.siamese import by_labels

            return by_labels(rows.examples).bind(student, rows)
        return BoundTaskLoss(student.task)


def task_loss(spec: TaskSpec, logits: Tensor, batch: Batch) -> Tensor:
    """Return the loss of the labels, averaged over what is counted.

    Args:
        spec: The task; ``class_weights`` apply to classification and tagging.
        logits: ``[B, C]``, ``[B, L, C]`` (tagging, masked-lm), ``[B, L, 2]`` (qa), or ``[B, 1]`` (multiple-choice),
            where the loss is that of a softmax over the choices of each example.
        batch: Holds the targets. Padding, special tokens and later pieces of a word are never counted, nor are
            texts without a label; if nothing is, the loss is 0.
    """
    return kind_of(spec.kind).loss(spec, logits.float(), batch.targets, batch.mask)


def task_count(spec: TaskSpec, batch: Batch) -> Tensor:
    """Return over how many labels ``task_loss`` averages, or the sum of their class weights; a scalar.

    Args:
        spec: The task.
        batch: Holds the targets.
    """
    labels = batch.targets.get("labels")
    if labels is None:  # qa counts each row once, by its two places
        return batch.rows.new_tensor(len(batch))
    return kind_of(spec.kind).counted(spec, labels)
