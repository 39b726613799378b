"""Distillation from an ensemble: the student learns the mean of several teachers' probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from compress.distill.components.distillation import Distillation
from compress.distill.logits import LogitDistillation, SoftTargets
from compress.technique import Inputs
from teachers.data.encoded_dataset import EncodedDataset
from teachers.signals.ensemble_teacher import EnsembleTeacher, combined, shares, weight_problems, weighted
from teachers.signals.model_teacher import TeacherSource
from teachers.taskmodel import TaskModel


class EnsembleDistillation(Distillation):
    """Train the student on the mean of several teachers' probabilities and on the labels.

    ``loss = alpha · T² · mean over rows of -Σ_c Q_c · log P_c + (1 - alpha) · hard`` with
    ``Q = Σ_k w_k · softmax(z_k)``, ``P`` the student's probabilities and ``hard`` the task's own loss. The recipe names
    the teachers: ``teacher: {model: [a, b]}``, or ``finetune: {seed: [13, 14, 15]}`` for seeds of one base.

    It is a preset of ``distill.logits``, which learns from the same ensemble with its own defaults (temperature 2, KL):
    here the temperature is 1, so that the target is Q itself, and the members can be weighted. Mean logits, which some
    code takes, are another target: they let one very sure member decide.

    Attributes:
        alpha: Weight of the soft targets, 0 to 1. Default 0.5, the paper's average of both.
        temperature: T, dividing the student's logits and ``log Q``. Default 1 as in the paper.
        weights: One a teacher, above 0, in the order of the recipe; scaled to a sum of 1. Default: all alike, as in
            the paper.

    Needs:
        Training examples, and teachers with the student's labels; a single teacher gives plain soft labels.

    Reduces:
        Nothing by itself; it recovers a student that is already smaller.

    Limits:
        Ensembles give logits alone: no hidden states, no attention. Regression takes the squared difference to the mean
        score, where the paper keeps the gold score. For tagging and qa, all must share a tokenizer. The multi-task
        student of the paper is ``teachers.finetuning.multitask``.

    Source:
        Liu, He, Chen, Gao 2019, arXiv 1904.09482.
    """

    name: ClassVar[str] = "distill.ensemble"
    takes_any: ClassVar[bool] = True
    source: ClassVar[str] = "Liu, He, Chen, Gao 2019, arXiv 1904.09482"

    alpha: float = Field(default=0.5, ge=0, le=1)
    temperature: float = Field(default=1.0, gt=0, le=1000)
    weights: tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...] | None = None

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse weights that do not fit the teachers."""
        if self.weights is None or inputs.teacher is None:
            return []
        members = len(inputs.teacher) if isinstance(inputs.teacher, EnsembleTeacher) else 1
        return [f"{self.name}: {problem}" for problem in weight_problems(self.weights, members)]

    def bind(self, student: TaskModel, rows: EncodedDataset, teacher: TeacherSource) -> SoftTargets:
        """Compute or find the logits of every teacher for these rows."""
        if self.weights is not None and len(self.weights) > 1:
            teacher = weighted(teacher, self.weights)
        preset = LogitDistillation(temperature=self.temperature, alpha=self.alpha, loss="soft_cross_entropy")
        return preset.bind(student, rows, teacher)


def ensemble_logits(logits: Sequence[Tensor], weights: Sequence[float] | None = None) -> Tensor:
    """Return the log of the mean of several teachers' probabilities: logits whose softmax is exactly that mean.

    Liu et al. 2019, arXiv 1904.09482. As the teacher of ``soft_cross_entropy`` they give the loss of
    ``distill.ensemble``.

    Args:
        logits: ``[B, C]``, or ``[B, L, C]`` with an output at every token, one tensor a teacher.
        weights: One a teacher, above 0; scaled to a sum of 1. None weighs all alike.

    Examples:
        >>> import torch
        >>> sure, unsure = torch.tensor([[0.8, 0.2]]).log(), torch.tensor([[0.5, 0.5]]).log()
        >>> [round(p, 4) for p in ensemble_logits([sure, unsure]).exp()[0].tolist()]
        [0.65, 0.35]
    """
    return combined("classification", logits, shares(weights, len(logits)), torch.empty(0))
