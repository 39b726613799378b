"""Soft targets: the student learns the teacher's probabilities beside the labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor, nn

from compress.distill.losses import logit_mse, paired_logits, soft_cross_entropy, soft_kl
from compress.technique import Inputs, Need, TrainedTechnique
from eval.task import TaskSpec
from teachers.features import Batch, Rows
from teachers.objective import task_loss
from teachers.signals import Reader, TeacherSource
from teachers.taskmodel import TaskModel, logits_of

SOFT_LOSSES: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "kl": soft_kl,
    "soft_cross_entropy": soft_cross_entropy,
    "mse": logit_mse,
}


class LogitDistillation(TrainedTechnique):
    """Train the student on the teacher's soft targets and on the labels.

    ``loss = alpha · soft + (1 - alpha) · hard`` with
    ``soft = T² · mean over rows of KL(softmax(teacher / T) ‖ softmax(student / T))`` and ``hard`` the task's own loss.
    Regression always takes the squared difference of the scores; qa averages start and end.

    Attributes:
        temperature: T, dividing both logits. Default 2, as in DistilBERT; Hinton et al. use 1 to 20.
        alpha: Weight of the soft targets, 0 to 1. Default 0.5 as in the task stage of DistilBERT.
        loss: ``kl``, ``soft_cross_entropy`` (same gradient, not 0 for equal logits) or ``mse`` on logits.

    Needs:
        Training examples and a teacher with the same labels.

    Reduces:
        Nothing by itself; it heals a student that is smaller already.

    Limits:
        With ``alpha`` 1 no label is read. For tagging and qa, teacher and student must share a tokenizer.

    Source:
        Hinton, Vinyals, Dean 2015, arXiv 1503.02531; on logits: Ba and Caruana 2014, arXiv 1312.6184.
    """

    name: ClassVar[str] = "distill.logits"
    needs: ClassVar[frozenset[Need]] = frozenset({"train", "teacher"})
    source: ClassVar[str] = "Hinton, Vinyals, Dean 2015, arXiv 1503.02531"

    temperature: float = Field(default=2.0, gt=0, le=1000)
    alpha: float = Field(default=0.5, ge=0, le=1)
    loss: Literal["kl", "soft_cross_entropy", "mse"] = "kl"

    def objective(self, inputs: Inputs) -> SoftTargets:
        """Return soft targets from the teacher in ``inputs``."""
        if inputs.teacher is None:
            raise TypeError("distill.logits was applied without a teacher; the engine refuses this earlier")
        return SoftTargets(inputs.teacher, self.temperature, self.alpha, self.loss)


@dataclass(frozen=True)
class SoftTargets:
    """The objective of ``distill.logits``."""

    teacher: TeacherSource
    temperature: float = 2.0
    alpha: float = 0.5
    loss: str = "kl"

    def bind(self, student: TaskModel, rows: Rows) -> BoundSoftTargets:
        """Compute or find the teacher's logits for these rows."""
        soft = "mse" if student.task.kind == "regression" else self.loss
        return BoundSoftTargets(student.task, self.teacher.read(rows), self.temperature, self.alpha, SOFT_LOSSES[soft])


@dataclass
class BoundSoftTargets:
    """The loss of soft targets over known rows."""

    spec: TaskSpec
    reader: Reader
    temperature: float
    alpha: float
    soft: Callable[[Tensor, Tensor, float], Tensor]
    reads: frozenset[str] = frozenset()
    modules: nn.Module = field(default_factory=nn.Module)

    def __call__(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """Return ``{"soft": …, "task": …}``; a term whose weight is 0 is left out."""
        logits = logits_of(outputs).float()
        terms: dict[str, Tensor] = {}
        if self.alpha > 0:
            terms["soft"] = self.alpha * self.soft_loss(logits, batch)
        if self.alpha < 1:
            terms["task"] = (1 - self.alpha) * task_loss(self.spec, logits, batch)
        return terms

    def soft_loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the mean soft loss over the pairs of logits (two for qa, else one)."""
        pairs = paired_logits(self.spec, logits, self.reader(batch).logits, batch)
        losses = [self.soft(student, teacher, self.temperature) for student, teacher in pairs]
        return sum(losses[1:], losses[0]) / len(losses)
