"""A language loss on the task's own text beside the loss of the task: L = L_task + gamma * L_lm.

``gamma`` falls exponentially over the training, so that the language is kept in mind at first and the task decides at
last. The paper's network is an LSTM that predicts the next word; an encoder predicts masked ones, for which it reads
each batch a second time with new masks, so an optimizer step takes about twice as long. A decoder predicts the next
word from the states that its classifier reads, as GPT did with a gamma of 0.5 from the first step to the last.

Source: Chronopoulou, Baziotis and Potamianos 2019, arXiv 1902.10547 (SiATL; gamma from 0.2 to 0.1); Radford,
Narasimhan, Salimans and Sutskever 2018 (GPT; ``start: 0.5, end: 0.5``).
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from eval.encoding import IGNORED
from eval.errors import UserError
from eval.task import TaskSpec
from teachers.anatomy.encoder import is_causal, layer_count, share_encoder, word_embeddings
from teachers.anatomy.mlm_head import head_modules
from teachers.data.encoded_dataset import Batch, EncodedDataset
from teachers.losses.loss import Loss, Objective, WrappedLoss, WrappedObjective
from teachers.losses.task_loss import TaskLoss, task_loss
from teachers.signals.hooks import Signals, SignalSpec
from teachers.taskmodel import TaskModel, build_taskmodel, logits_of
from teachers.training.config import AuxiliaryLM

VERSION = 2
"""Raised when the same settings give another weight, other masks or another head."""
SPEC = TaskSpec(kind="masked-lm", metric="masked_accuracy")


@dataclass(frozen=True)
class WithLanguageModel(WrappedObjective):
    """An objective, and the language loss of the same texts: of masked words, of a decoder that of the next ones.

    The head that predicts words is new, tied to the student's word embeddings, and thrown away after the training.

    Attributes:
        objective: Whatever else is minimised; the labels' own loss by default.
        weight: Of the language loss, from the first optimizer step to the last.
    """

    objective: Objective = field(default_factory=TaskLoss)
    weight: AuxiliaryLM = field(default_factory=AuxiliaryLM)

    def bind(self, student: TaskModel, rows: EncodedDataset) -> LanguageModelLoss | NextWordLoss:
        """Bind the objective and make the head.

        Raises:
            UserError: If an encoder's family has no masked-language head, or its tokenizer no mask token.
        """
        if is_causal(student.model):
            return NextWordLoss(self.objective.bind(student, rows), self.weight, student.model)
        if rows.mask_id is None:
            raise UserError(f"auxiliary_lm: the tokenizer of {student.name} has no mask token")
        reader = language_model(student, rows.seed)
        return LanguageModelLoss(self.objective.bind(student, rows), self.weight, rows, reader)


class LanguageModelLoss(WrappedLoss):
    """Both losses over known rows.

    Args:
        inner: The loss of the objective.
        weight: Of the masked-language loss.
        rows: Say which tokens may be masked.
        reader: A network with the student's encoder and a masked-language head, which is trained beside the student.
    """

    def __init__(self, inner: Loss, weight: AuxiliaryLM, rows: EncodedDataset, reader: Any) -> None:
        super().__init__(inner, head_modules(reader))
        self.weight, self.rows, self.reader = weight, rows, reader

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Return over how many answers each term is a mean."""
        hidden = self.masked(batch).targets["labels"] != IGNORED
        return {**self.inner.counts(batch), "language_model": hidden.sum()}

    def __call__(self, student: Signals, batch: Batch) -> dict[str, Tensor]:
        """Return the terms of the objective, and ``language_model``, weighted."""
        masked = self.masked(batch)
        logits = logits_of(self.reader(**masked.inputs))
        weight = gamma(self.weight, batch.progress)
        return {**self.inner(student, batch), "language_model": weight * task_loss(SPEC, logits, masked)}

    def masked(self, batch: Batch) -> Batch:
        """Return the batch with 15% of its tokens hidden, and those as labels; new masks at every optimizer step.

        The masks of a row depend on seed, row and progress alone, whatever it is batched with.
        """
        rows = self.rows
        chances = [np.random.default_rng([rows.seed, int(batch.progress * 2**32), row]) for row in batch.rows.tolist()]
        ids, labels = rows.masked(batch.inputs["input_ids"].cpu().numpy(), batch.mask.cpu().numpy(), chances)
        device = batch.rows.device
        inputs = {**batch.inputs, "input_ids": torch.from_numpy(ids).to(device)}
        return Batch(inputs, {"labels": torch.from_numpy(labels).to(device)}, batch.rows, batch.progress)


class NextWordLoss(WrappedLoss):
    """The loss of an objective, and that of the next word, from the last hidden states of the same pass.

    Args:
        inner: The loss of the objective.
        weight: Of the language loss.
        network: A decoder, whose word embeddings score words too.
    """

    def __init__(self, inner: Loss, weight: AuxiliaryLM, network: Any) -> None:
        super().__init__(inner)
        self.weight, self.network, self.last = weight, network, layer_count(network)
        self.reads = inner.reads | SignalSpec(hidden_states=(self.last,))

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Return over how many answers each term is a mean."""
        return {**self.inner.counts(batch), "language_model": _followed(batch).sum()}

    def __call__(self, student: Signals, batch: Batch) -> dict[str, Tensor]:
        """Return the terms of the objective, and ``language_model``, weighted."""
        real = _followed(batch)
        states = student.hidden_states[self.last][:, :-1][real]
        scores = functional.linear(states, word_embeddings(self.network).weight).float()
        total = functional.cross_entropy(scores, batch.inputs["input_ids"][:, 1:][real], reduction="sum")
        loss = total / real.sum().clamp_min(1)  # texts of a single token have no next one
        return {**self.inner(student, batch), "language_model": gamma(self.weight, batch.progress) * loss}


def _followed(batch: Batch) -> Tensor:
    """Return which real tokens come after another one, ``[B, L - 1]``; padding may stand on either side."""
    return (batch.mask[:, 1:] * batch.mask[:, :-1]).bool()


def gamma(weight: AuxiliaryLM, progress: float) -> float:
    """Return ``start * (end / start) ** progress``; the paper takes a step each epoch, this one each optimizer step.

    The first optimizer step has exactly ``start`` and the last exactly ``end``.
    """
    return weight.end if progress >= 1 else weight.start * math.pow(weight.end / weight.start, progress)


def language_model(student: TaskModel, seed: int) -> Any:
    """Return a masked-language network that runs the student's own encoder under a new head, tied to its words."""
    spec = SPEC.model_copy(update={"max_length": student.task.max_length})
    built = build_taskmodel(copy.deepcopy(student.model.config), student.tokenizer, spec, seed=seed, name=student.name)
    share_encoder(student.model, built.model)
    built.model.tie_weights()
    return built.model.train()
