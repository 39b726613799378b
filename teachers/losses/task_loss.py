"""The task's own loss, which training minimises unless another objective is named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from eval.kinds.kind_registry import kind_of
from eval.task import Examples, TaskSpec
from teachers.data.encoded_dataset import Batch, EncodedDataset, labelled
from teachers.losses.catalogue import by_labels
from teachers.losses.loss import Loss, Objective
from teachers.losses.smoothed import SmoothedLoss, refuse_unsmooth
from teachers.signals.hooks import NOTHING, Signals, SignalSpec

if TYPE_CHECKING:
    from teachers.taskmodel import TaskModel


@dataclass
class BoundTaskLoss(Loss):
    """The loss of the labels themselves."""

    spec: TaskSpec
    reads: SignalSpec = NOTHING

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Return how many labels there are, or their weight."""
        return {"task": task_count(self.spec, batch)}

    def __call__(self, student: Signals, batch: Batch) -> dict[str, Tensor]:
        """Return ``{"task": …}``."""
        return {"task": task_loss(self.spec, student.logits, batch)}


@dataclass(frozen=True)
class TaskLoss(Objective):
    """Cross-entropy or mean squared error against the labels; the default objective of everything that trains.

    For embedding it is the loss of a Siamese encoder that fits the labels of the pairs (``teachers.losses.siamese``).

    Attributes:
        smoothing: Weight that is spread over all labels (``teachers.losses.smoothed``).
    """

    smoothing: float = 0.0

    def select(self, spec: TaskSpec, examples: Examples) -> Examples:
        """Return the examples with a label."""
        return labelled(spec, examples)

    def bind(self, student: TaskModel, rows: EncodedDataset) -> Loss:
        """Return the loss of the student's own task."""
        if kind_of(student.task.kind).vectors:
            return by_labels(rows.examples).bind(student, rows)
        if self.smoothing:
            refuse_unsmooth(student.task)
            return SmoothedLoss(student.task, self.smoothing)
        return BoundTaskLoss(student.task)


def task_loss(spec: TaskSpec, logits: Tensor, batch: Batch) -> Tensor:
    """Return the loss of the labels, averaged over what is counted.

    Args:
        spec: The task; ``class_weights`` apply to classification and tagging.
        logits: ``[B, C]``, ``[B, L, C]`` (tagging, masked-lm), ``[B, L, 2]`` (qa), or ``[B, 1]`` (multiple-choice),
            where the loss is that of a softmax over the choices of each example.
        batch: Holds the targets. Padding, special tokens and later tokens of a word are never counted, nor are
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
