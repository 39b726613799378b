"""BERT-PKD: the student follows the teacher's intermediate [CLS] states, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (the field's own abbreviation)

from compress.distill.components.distillation import Distillation
from compress.distill.components.layer_map import LayerMap, map_problems, resolve
from compress.distill.logits import LogitDistillation, SoftTargets
from compress.technique import Inputs
from teachers.anatomy.encoder import is_causal, layer_count, shape_of
from teachers.anatomy.pooling import last_real
from teachers.data.encoded_dataset import Batch, EncodedDataset
from teachers.losses.loss import Loss
from teachers.signals.hooks import Signals, SignalSpec
from teachers.signals.model_teacher import TeacherSource
from teachers.taskmodel import TaskModel
from teachers.training.config import Training


class PatientDistillation(Distillation):
    """Train the student on soft targets and on the direction of the teacher's intermediate [CLS] states.

    ``loss = (1 - alpha) · hard + alpha · T² · KL(teacher / T ‖ student / T) + beta · patience`` with
    ``patience = ‖h_S / ‖h_S‖ - h_T / ‖h_T‖‖²`` over the [CLS] states after every student layer but the last, which
    the soft targets govern. The paper's "PKD-Skip" is ``layer_map: uniform``, its "PKD-Last" is ``last``; its student
    keeps the teacher's first layers: ``student: {from: teacher, layers: 6, pick: first}``.

    Attributes:
        temperature: T. Default 10, the authors' example.
        alpha: Weight of the soft targets, 0 to 1. Default 0.7, likewise.
        beta: Weight of the patience. Default 500, likewise; it belongs to the mean.
        layer_map: The teacher layer of every student layer; the last one's entry is not used.
        tokens: ``first`` follows the [CLS] state as in the paper, ``all`` every real token (for tagging and qa).
        patience: ``mean`` divides by layers and width, as in the code that the published betas were found with;
            ``sum`` is the paper's formula, for which beta is to be divided by both.
        training: Defaults as in the paper: 4 epochs of 32; rate 5e-5, the highest of its grid.

    Needs:
        Training examples and a teacher with the student's labels, tokenizer and hidden size.

    Reduces:
        Nothing by itself; it recovers a student with fewer layers.

    Limits:
        Hidden sizes must be equal, and the student needs at least two layers. The authors' code divides the KL by the
        number of classes too; here it is the paper's, so their alpha of 0.7 weighs the soft targets more.

    Source:
        Sun, Cheng, Gan, Liu 2019, arXiv 1908.09355.
    """

    name: ClassVar[str] = "distill.pkd"
    source: ClassVar[str] = "Sun, Cheng, Gan, Liu 2019, arXiv 1908.09355"

    temperature: float = Field(default=10.0, gt=0, le=1000)
    alpha: float = Field(default=0.7, ge=0, le=1)
    beta: float = Field(default=500.0, ge=0)
    layer_map: LayerMap = "uniform"
    tokens: Literal["first", "all"] = "first"
    patience: Literal["mean", "sum"] = "mean"
    training: Training = Training(epochs=4, learning_rate=5e-5, batch_size=32)

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse a teacher of another width, a single layer, and a layer map that does not fit."""
        if inputs.teacher is None:
            return []
        shape, teacher = shape_of(student.model.config), inputs.teacher
        found = [f"{self.name}: {problem}" for problem in map_problems(self.layer_map, shape.layers, teacher.layers)]
        if shape.hidden_size != teacher.hidden_size:
            found.append(
                f"{self.name}: hidden sizes must be equal, the student has {shape.hidden_size} and the teacher "
                f"{teacher.hidden_size}; distill.tinybert and distill.minilm take any width"
            )
        if shape.layers < 2:
            found.append(f"{self.name}: needs a student of at least 2 layers, this one has {shape.layers}")
        return found

    def bind(self, student: TaskModel, rows: EncodedDataset, teacher: TeacherSource) -> PatientLoss:
        """Compute or find the teacher's logits and intermediate states for these rows."""
        layer_map = resolve(self.layer_map, student, rows, teacher)[:-1]
        soft = LogitDistillation(temperature=self.temperature, alpha=self.alpha).bind(student, rows, teacher)
        soft.reader = teacher.read(rows, SignalSpec(hidden_states=tuple(sorted({layer + 1 for layer in layer_map}))))
        own = SignalSpec(hidden_states=tuple(range(1, layer_count(student.model))))
        last = is_causal(student.model) or rows.encoder.settings.pad_side == "left"
        return PatientLoss(self, soft, layer_map, last, own)


@dataclass
class PatientLoss(Loss):
    """The loss of ``distill.pkd`` over known rows.

    Attributes:
        config: Its weights.
        soft: Soft targets and labels.
        layer_map: Teacher layer of every student layer but the last.
        last: Whether the token that stands for the text is the last one, as in decoders, and not the first.
        reads: The student's intermediate states.
    """

    config: PatientDistillation
    soft: SoftTargets
    layer_map: tuple[int, ...]
    last: bool
    reads: SignalSpec

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Return over how many rows of logits, labels and states the terms are means."""
        states = batch.mask.sum() if self.config.tokens == "all" else batch.rows.new_tensor(len(batch.rows))
        return {**self.soft.counts(batch), "patience": states}

    def __call__(self, student: Signals, batch: Batch) -> dict[str, Tensor]:
        """Return ``{"soft", "task", "patience"}``; a term whose weight is 0 is left out."""
        teacher = self.soft.reader(batch)
        terms = self.soft.terms(student, teacher, batch)
        if self.config.beta:
            terms["patience"] = self.config.beta * self.patience(student, teacher, batch.mask)
        return terms

    def patience(self, student: Signals, teacher: Signals, mask: Tensor) -> Tensor:
        """Return the distance of the normalised states, over all layers but the last."""
        own = [student.hidden_states[i + 1] for i in range(len(self.layer_map))]
        other = [teacher.hidden_states[layer + 1] for layer in self.layer_map]
        return pkd_patience(
            [self._chosen(x, mask) for x in own], [self._chosen(x, mask) for x in other], self.config.patience
        )

    def _chosen(self, states: Tensor, mask: Tensor) -> Tensor:
        if self.config.tokens == "all":
            return states[mask.bool()]
        return last_real(states, mask) if self.last else states[:, 0]


def pkd_patience(
    student: Sequence[Tensor], teacher: Sequence[Tensor], reduction: Literal["mean", "sum"] = "mean"
) -> Tensor:
    """Return the squared distance of states scaled to length 1 (BERT-PKD: Sun et al. 2019, arXiv 1908.09355).

    Args:
        student: The states that are compared, ``[n, d]`` for each layer; in the paper the [CLS] states after every
            layer but the last.
        teacher: The same shapes, of the layers that are imitated.
        reduction: ``mean`` over all, as in the authors' code, or the paper's ``sum`` over layers and width and mean
            over rows.

    Examples:
        >>> import torch
        >>> student, teacher = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 1.0]])
        >>> pkd_patience([student], [teacher]).item(), pkd_patience([student], [teacher], "sum").item()
        (1.0, 2.0)
    """
    own, other = (F.normalize(torch.stack(list(states)).float(), dim=-1) for states in (student, teacher))
    squares = (own - other).square()
    return squares.mean() if reduction == "mean" else squares.sum(dim=(0, 2)).mean()
