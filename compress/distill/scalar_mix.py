"""ELMo's scalar mix as what a student learns: the weighted sum of all hidden states of its teacher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from compress.architectures.states_head import ScalarMix
from compress.distill.components.distillation import Distillation
from compress.distill.components.distillation_losses import soft_loss
from compress.distill.components.projection import Projection
from compress.distill.logits import SoftTargets
from compress.distill.tinybert import hidden_state_mse
from compress.technique import Inputs
from eval.kinds.kind_registry import kind_of
from teachers.anatomy.encoder import layer_count, shape_of
from teachers.data.encoded_dataset import Batch, EncodedDataset
from teachers.losses.loss import Loss
from teachers.signals.hooks import Signals, SignalSpec
from teachers.signals.model_teacher import TeacherSource
from teachers.taskmodel import TaskModel


class ScalarMixDistillation(Distillation):
    """Train the student's last hidden states on a weighted sum of all of the teacher's, beside soft targets and labels.

    ``loss = (1 - alpha) · hard + alpha · T² · KL(teacher / T ‖ student / T) + beta · mix`` with
    ``mix = mean over real tokens and channels of (W h_S - gamma · Σ_j softmax(s)_j h_j)²``, where ``h_S`` is the
    student's last hidden state and the sum goes over the teacher's embedding output and all of its layers. ``W`` is a
    projection that is trained beside the student and then dropped; equal widths need none. The scalars ``s`` and
    ``gamma`` are those of a teacher that was fine-tuned with ``head: scalar_mix``, which normalises each state first
    if that head does. With a standard head the mix is uniform: ``s = 0`` and ``gamma = 1``, as such a head begins.

    Attributes:
        temperature: T. Default 2, as of ``distill.logits``.
        alpha: Weight of the soft targets, 0 to 1. Default 0.5, likewise.
        beta: Weight of the mix. Default 1, as of the hidden states in ``distill.tinybert``.

    Needs:
        Training examples and a teacher with the student's labels and tokenizer.

    Reduces:
        Nothing by itself; it recovers a student with fewer or thinner layers.

    Limits:
        The paper trains a classifier over the mix and distils nothing: this loss and its weights are ours. The student
        has no mix of its own; its head reads the states that learned the teacher's. The states of all layers are kept
        on disk, ``4 · (layers + 1) · width`` bytes a token; beyond the teacher's budget (4 GiB) it runs live. Tokens
        are compared one to one, so both must tokenize alike. Teachers with other custom heads give logits alone, and
        embedders none: take ``distill.logits`` and ``distill.embedding``.

    Source:
        The mix: Peters, Neumann, Iyyer, Gardner, Clark, Lee, Zettlemoyer 2018, arXiv 1802.05365 (ELMo). The squared
        difference of hidden states, through a projection: Jiao et al. 2020, arXiv 1909.10351 (TinyBERT).
    """

    name: ClassVar[str] = "distill.scalar_mix"
    source: ClassVar[str] = "Peters, Neumann, Iyyer, Gardner, Clark, Lee, Zettlemoyer 2018, arXiv 1802.05365"

    temperature: float = Field(default=2.0, gt=0, le=1000)
    alpha: float = Field(default=0.5, ge=0, le=1)
    beta: float = Field(default=1.0, ge=0)

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse vectors as predictions, and a teacher whose layers are not known."""
        if inputs.teacher is not None:
            mix_of(inputs.teacher)
        if not kind_of(student.task.kind).vectors:
            return []
        return [f"{self.name}: an embedding has vectors, not logits; take distill.embedding"]

    def bind(self, student: TaskModel, rows: EncodedDataset, teacher: TeacherSource) -> MixLoss:
        """Find the teacher's mix, make the projection, and compute or find its logits and all of its hidden states."""
        mix, last = mix_of(teacher), layer_count(student.model)
        reader = teacher.read(rows, SignalSpec(hidden_states=tuple(range(len(mix.scalars)))))
        soft = SoftTargets(student.task, reader, self.temperature, self.alpha, soft_loss(student.task, "kl"))
        projection = Projection(shape_of(student.model.config).hidden_size, teacher.hidden_size)
        return MixLoss(self.beta, soft, mix, last, projection)


@dataclass
class MixLoss(Loss):
    """The loss of ``distill.scalar_mix`` over known rows.

    Attributes:
        beta: Weight of the mix.
        soft: Soft targets and labels; its reader gives the teacher's hidden states too.
        mix: The teacher's scalar mix, which stays as it is.
        last: Place of the student's last hidden state.
        projection: Map from the student's width to the teacher's, trained beside the student.
    """

    beta: float
    soft: SoftTargets
    mix: ScalarMix
    last: int
    projection: Projection

    def __post_init__(self) -> None:
        """Have the student's last hidden state read and the projection trained."""
        self.reads, self.modules = SignalSpec(hidden_states=(self.last,)), self.projection

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Return over how many rows of logits, labels and tokens the terms are means."""
        return {**self.soft.counts(batch), "mix": batch.mask.sum()}

    def __call__(self, student: Signals, batch: Batch) -> dict[str, Tensor]:
        """Return ``{"soft", "task", "mix"}``; a term whose weight is 0 is left out."""
        teacher = self.soft.reader(batch)
        terms = self.soft.terms(student, teacher, batch)
        if self.beta:
            own = self.projection(student.hidden_states[self.last])
            terms["mix"] = self.beta * hidden_state_mse(own, self.mixed(teacher), batch.mask)
        return terms

    @torch.no_grad()
    def mixed(self, teacher: Signals) -> Tensor:
        """Return the weighted sum of the teacher's hidden states, ``[B, L, d]``."""
        states: Tensor = self.mix(tuple(teacher.hidden_states[place].float() for place in range(len(self.mix.scalars))))
        return states


def mix_of(teacher: TeacherSource) -> ScalarMix:
    """Return the scalar mix that a teacher's head was trained with; a uniform one for a standard head.

    Args:
        teacher: Where the hidden states come from.

    Raises:
        UserError: If its layers are not known, as of an ensemble, a file of predictions or a BiLSTM.
    """
    network = getattr(getattr(teacher, "model", None), "model", None)
    trained = getattr(network, "mix", None)
    return trained if isinstance(trained, ScalarMix) else ScalarMix(teacher.layers + 1)
