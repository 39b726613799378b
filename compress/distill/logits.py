"""Soft targets: the student learns the teacher's probabilities beside the labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator
from torch import Tensor

from compress.distill.components.distillation import Distillation
from compress.distill.components.distillation_losses import SoftLoss, paired_logits, soft_count, soft_loss
from compress.distill.components.schedule import Schedule, check_ends, value_at
from eval.task import TaskSpec
from teachers.data.encoded_dataset import Batch, EncodedDataset
from teachers.losses.loss import Loss
from teachers.losses.task_loss import task_count, task_loss
from teachers.signals.hooks import Signals
from teachers.signals.model_teacher import Reader, TeacherSource
from teachers.taskmodel import TaskModel


class LogitDistillation(Distillation):
    """Train the student on the teacher's soft targets and on the labels.

    ``loss = alpha · soft + (1 - alpha) · hard`` with
    ``soft = T² · mean over rows of KL(softmax(teacher / T) ‖ softmax(student / T))`` and ``hard`` the task's own loss.
    Regression always takes the squared difference of the scores; qa averages start and end; multilabel compares the two
    probabilities of each label, yes and no, by the sigmoid, and averages over labels.

    Attributes:
        temperature: T, dividing both logits; a number, or a schedule such as ``{from: 4, to: 1, shape: cosine}``,
            whose last value the last optimizer step has. Default 2, as in DistilBERT; Hinton et al. use 1 to 20.
        alpha: Weight of the soft targets, 0 to 1; a number or a schedule. Default 0.5 as in the task stage of
            DistilBERT.
        loss: ``kl``, ``soft_cross_entropy`` (same gradient, not 0 for equal logits) or ``mse`` on logits.

    Needs:
        Training examples and a teacher with the same labels.

    Reduces:
        Nothing by itself; it recovers a student that is already smaller.

    Limits:
        With ``alpha`` 1 no label is read. For tagging and qa, teacher and student must share a tokenizer.

    Source:
        Hinton, Vinyals, Dean 2015, arXiv 1503.02531; on logits: Ba and Caruana 2014, arXiv 1312.6184.
    """

    name: ClassVar[str] = "distill.logits"
    version: ClassVar[int] = 2
    takes_any: ClassVar[bool] = True
    both_stacks: ClassVar[bool] = True
    source: ClassVar[str] = "Hinton, Vinyals, Dean 2015, arXiv 1503.02531"

    temperature: Annotated[float, Field(gt=0, le=1000)] | Schedule = 2.0
    alpha: Annotated[float, Field(ge=0, le=1)] | Schedule = 0.5
    loss: Literal["kl", "soft_cross_entropy", "mse"] = "kl"

    @field_validator("temperature")
    @classmethod
    def _warm(cls, value: float | Schedule) -> float | Schedule:
        check_ends("temperature", value, 0.01, 1000)
        return value

    @field_validator("alpha")
    @classmethod
    def _share(cls, value: float | Schedule) -> float | Schedule:
        check_ends("alpha", value, 0, 1)
        return value

    def bind(self, student: TaskModel, rows: EncodedDataset, teacher: TeacherSource) -> SoftTargets:
        """Compute or find the teacher's logits for these rows."""
        soft = soft_loss(student.task, self.loss)
        return SoftTargets(student.task, teacher.read(rows), self.temperature, self.alpha, soft)


@dataclass
class SoftTargets(Loss):
    """The loss of ``distill.logits`` over known rows; on unlabelled text of all tokens, or of masked ones alone."""

    spec: TaskSpec
    reader: Reader
    temperature: float | Schedule
    alpha: float | Schedule
    soft: SoftLoss
    only_predicted: bool = False

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Return over how many rows of logits and labels the terms are means."""
        return {"soft": soft_count(self.spec, batch, self.only_predicted), "task": task_count(self.spec, batch)}

    def __call__(self, student: Signals, batch: Batch) -> dict[str, Tensor]:
        """Return ``{"soft": …, "task": …}``; a term whose weight stays 0 is left out."""
        return self.terms(student, self.reader(batch), batch)

    def terms(self, student: Signals, teacher: Signals, batch: Batch) -> dict[str, Tensor]:
        """Return the terms against signals that are already there."""
        logits = student.logits.float()
        alpha = value_at(self.alpha, batch.progress)
        terms: dict[str, Tensor] = {}
        if self.alpha != 0:
            terms["soft"] = alpha * self.soft_loss(logits, teacher.logits, batch)
        if self.alpha != 1:
            terms["task"] = (1 - alpha) * task_loss(self.spec, logits, batch)
        return terms

    def soft_loss(self, student: Tensor, teacher: Tensor, batch: Batch) -> Tensor:
        """Return the mean soft loss over the pairs of logits (two for qa, else one)."""
        temperature = value_at(self.temperature, batch.progress)
        pairs = paired_logits(self.spec, student, teacher, batch, self.only_predicted)
        losses = [self.soft(own, other, temperature) for own, other in pairs]
        return sum(losses[1:], losses[0]) / len(losses)
