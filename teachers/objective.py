"""What training minimises: the protocol of every objective, and the task's own loss."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (the field's own abbreviation)

from eval.encoding import IGNORED
from eval.errors import UserError
from eval.task import Examples, TaskSpec
from teachers.choices import joined_choices
from teachers.features import Batch, Rows, labelled
from teachers.observing import NOTHING, Signals, Wanted

if TYPE_CHECKING:
    from teachers.taskmodel import TaskModel


class Loss(Protocol):
    """An objective that is tied to one student and its rows.

    Some losses have more, by these names: ``groups``, a number for each row, where rows of one number shall meet in a
    batch (its border may still cut a group, unless ``whole_groups`` is true); ``prepare(batch)``, the batch as the
    student shall see it; and ``counts(batch)``, over how many things each term is a mean, so that pieces of a batch and
    processes weigh by it (rows, for terms that are not named).

    Attributes:
        reads: What of the student is read.
        modules: Parameters that are trained beside the student's, such as projections, and then thrown away.
    """

    reads: Wanted
    modules: nn.Module

    def __call__(self, student: Signals, batch: Batch) -> dict[str, Tensor]:
        """Return the terms of the loss, already weighted; their sum is minimised."""
        ...


class Objective(Protocol):
    """A description of a loss, such as a distillation technique; it becomes a ``Loss`` by being bound.

    One that cannot learn from every example may have ``select(spec, examples)``, which returns those it learns from.
    """

    def bind(self, student: TaskModel, rows: Rows) -> Loss:
        """Prepare for these rows: compute and cache teacher signals, make projections."""
        ...


def examples_for(objective: Objective, spec: TaskSpec, examples: Examples) -> Examples:
    """Return the examples that an objective learns from.

    Raises:
        UserError: If it learns from none.
    """
    if getattr(objective, "reads_labels_alone", False):
        examples = labelled(spec, examples)
    select = getattr(objective, "select", None)
    chosen: Examples = examples if select is None else select(spec, examples)
    return chosen


@dataclass
class BoundTaskLoss:
    """The loss of the labels themselves."""

    spec: TaskSpec
    reads: Wanted = NOTHING
    modules: nn.Module = field(default_factory=nn.Module)

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Return how many labels there are, or their weight."""
        labels = batch.targets.get("labels")
        if labels is None:
            return {}
        if self.spec.kind == "regression":
            return {"task": (~labels.isnan()).sum()}
        known = labels[labels != IGNORED]
        weights = self.spec.class_weights
        return {
            "task": known.new_tensor(len(known))
            if weights is None
            else torch.tensor(weights).to(known.device)[known].sum()
        }

    def __call__(self, student: Signals, batch: Batch) -> dict[str, Tensor]:
        """Return ``{"task": …}``."""
        return {"task": task_loss(self.spec, student.logits, batch)}


@dataclass(frozen=True)
class TaskLoss:
    """Cross-entropy or mean squared error against the labels; the default objective of everything that trains.

    For embedding it is the loss of a Siamese encoder that fits the labels of the pairs, see ``teachers.siamese``.

    Attributes:
        reads_labels_alone: Whether examples without a label teach nothing, so that they are left out.
    """

    reads_labels_alone: ClassVar[bool] = True

    def bind(self, student: TaskModel, rows: Rows) -> Loss:
        """Return the loss of the student's own task."""
        if student.task.kind == "embedding":
            from teachers.siamese import by_labels

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
    logits = logits.float()
    if spec.kind == "embedding":
        raise UserError(
            "an embedding task has no labels to learn from text by text; train with a teacher's vectors: "
            "distill.embedding, or a method that reads hidden states alone"
        )
    if spec.kind == "regression":
        scores, labels = logits[:, 0], batch.targets["labels"]
        known = ~labels.isnan()
        return F.mse_loss(scores[known], labels[known]) if bool(known.any()) else scores.sum() * 0.0
    if spec.kind == "qa":
        scores = logits.masked_fill(batch.mask[..., None] == 0, torch.finfo(logits.dtype).min)
        start = F.cross_entropy(scores[..., 0], batch.targets["start_positions"])
        return (start + F.cross_entropy(scores[..., 1], batch.targets["end_positions"])) / 2
    if spec.kind == "multiple-choice":
        logits = joined_choices(logits, batch.targets["choices"])
    weights = None if spec.class_weights is None else logits.new_tensor(spec.class_weights)
    labels = batch.targets["labels"].reshape(-1)
    flat = logits.reshape(len(labels), -1)
    if not bool((labels != IGNORED).any()):  # a batch in which nothing is predicted
        return flat.sum() * 0.0
    return F.cross_entropy(flat, labels, weight=weights, ignore_index=IGNORED)
