"""What a teacher tells a student: logits and, on request, hidden states and attention; computed once, kept on disk."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from eval.errors import UserError
from eval.files.home import home
from eval.files.writing import exclusive
from eval.inference import Answer, predict
from eval.kinds.kind_registry import kind_of
from eval.task import Examples
from teachers.anatomy.attention_heads import has_all_heads
from teachers.anatomy.encoder import attention_width, has_plain_attention, shape_of
from teachers.anatomy.head_bias import score_bias
from teachers.data.encoded_dataset import Batch, EncodedDataset
from teachers.file_digests import config_values
from teachers.number_format import Precision, mixed_precision
from teachers.signals.cached_reader import CachedReader, write_signals
from teachers.signals.hooks import NOTHING, Signals, SignalSpec
from teachers.signals.live_reader import LiveReader
from teachers.signals.same_tokens import numbers_of_words, reads_alike, same_pieces
from teachers.taskmodel import TaskModel

logger = logging.getLogger("teachers.signals.model_teacher")

VERSION = 3
"""Raised when the same teacher and data give other numbers or another layout on disk."""

BUDGET_BYTES = 4 * 2**30
"""Most bytes one cache of signals may take unless the teacher says otherwise; beyond it the teacher runs live."""


class Reader(Protocol):
    """Gives the teacher outputs of any batch of the rows it was made for."""

    def __call__(self, batch: Batch) -> Signals:
        """Return the signals of the rows in ``batch``."""
        ...


class TeacherSource(Protocol):
    """Where signals come from: one network or several."""

    @property
    def digest(self) -> str:
        """Names the teacher by its content."""
        ...

    @property
    def layers(self) -> int:
        """How many layers the teacher has."""
        ...

    @property
    def decoder_layers(self) -> int:
        """How many layers its decoder has; 0 without one beside an encoder."""
        ...

    @property
    def hidden_size(self) -> int:
        """Width of the teacher's hidden states."""
        ...

    @property
    def heads(self) -> int:
        """How many attention heads each of its layers has."""
        ...

    @property
    def plain_attention(self) -> bool:
        """Whether its attention scores are the scaled products of its queries and keys, and nothing else."""
        ...

    def score_bias(self, layer: int, length: int) -> Tensor | None:
        """Return what a layer adds to these products by distance, ``[heads, L, L]``; None if nothing."""
        ...

    def answers(self, examples: Examples) -> list[Answer]:
        """Return the teacher's own answers; none if it does not know all of them."""
        ...

    def read(self, rows: EncodedDataset, wanted: SignalSpec = NOTHING) -> Reader:
        """Return a reader for these rows.

        Args:
            rows: What the student is trained on.
            wanted: Signals that are read.
        """
        ...

    def kept_in(self, cache: Path) -> TeacherSource:
        """Return the same teacher, whose signals are kept in a folder of the caller's."""
        ...


@dataclass(frozen=True)
class ModelTeacher:
    """A network as teacher. Its signals are computed once over all rows and kept on disk, named by content.

    Attributes:
        model: The teacher.
        cache: Folder of the caches; None is ``signals`` under ``COMPRESS_HOME``.
        budget_bytes: Signals whose predicted size is larger are computed live in every step.
        precision: Number format of signals that are kept, as of a training (``Training.precision``): bf16 where the
            student is trained in bf16, for live ones are then too; otherwise float32.
    """

    model: TaskModel
    cache: Path | None = None
    budget_bytes: int = BUDGET_BYTES
    precision: Precision = "auto"

    @cached_property
    def digest(self) -> str:
        """SHA-256 over weights, config, tokenizer and settings."""
        encoder = self.model.encoder
        digest = hashlib.sha256(self.model.digest.encode())
        digest.update(json.dumps(config_values(self.model), sort_keys=True).encode())
        digest.update(encoder.tokenizer.to_str().encode())
        digest.update(json.dumps(encoder.settings.to_dict(), sort_keys=True).encode())
        if kind_of(self.model.task.kind).vectors:
            digest.update(f"{self.model.task.pooling} {self.model.task.normalize}".encode())
        return digest.hexdigest()

    @property
    def layers(self) -> int:
        """How many layers the teacher has."""
        return self._known("layers", "layers")

    @property
    def decoder_layers(self) -> int:
        """How many layers its decoder has; 0 without one beside an encoder."""
        return shape_of(self.model.model.config).decoder_layers or 0

    @property
    def hidden_size(self) -> int:
        """Width of the teacher's hidden states."""
        return self._known("hidden_size", "hidden states")

    @property
    def heads(self) -> int:
        """How many attention heads each of its layers has."""
        return self._known("heads", "attention heads")

    @property
    def plain_attention(self) -> bool:
        """Whether its attention scores are the scaled products of its queries and keys, and nothing else."""
        return has_plain_attention(self.model.model)

    @torch.no_grad()
    def score_bias(self, layer: int, length: int) -> Tensor | None:
        """Return what a layer adds to these products by distance, ``[heads, L, L]``; None if nothing."""
        return score_bias(self.model.model, layer, length)

    def answers(self, examples: Examples) -> list[Answer]:
        """Return the network's answers."""
        return predict(self.model, examples).answers

    def read(self, rows: EncodedDataset, wanted: SignalSpec = NOTHING) -> Reader:
        """Return a reader from disk if the signals fit the budget and inputs are fixed, else a live one.

        Raises:
            UserError: If teacher and student read texts differently and the signals are per token.
        """
        if rows.spec.outputs != self.model.task.outputs or rows.spec.labels != self.model.task.labels:
            raise UserError(
                f"teacher {self.model.name} answers {list(self.model.task.labels) or self.model.task.kind}, "
                f"the student {list(rows.spec.labels) or rows.spec.kind}; they must be the same"
            )
        same = reads_alike(self.model.encoder, rows.encoder)
        kind = kind_of(rows.spec.kind)
        per_token, fixed = bool(wanted) or rows.spec.per_token or kind.writes, not (kind.masks or kind.writes)
        own = rows if same or not fixed else _own_rows(self.model, rows)
        if per_token and not (same or (fixed and same_pieces(own, rows))):
            raise UserError(
                f"teacher {self.model.name} and the student tokenize differently, so their tokens cannot be paired; "
                "only what answers a whole text (logits, scores, vectors) can be distilled between them"
            )
        self.refuse_lost_heads(wanted)
        live = LiveReader(self.model, wanted)
        if not fixed:
            return live  # new masks in every epoch, or the whole vocabulary at every token: nothing to keep
        predicted = predicted_bytes(self.model, own.tokens, wanted)
        reader: Reader = live
        if predicted > self.budget_bytes and (same or per_token):
            logger.info("outputs of %s would take %.1f GB: running it live", self.model.name, predicted / 2**30)
            reader = live if same else OnOwnInputs(live, own)
        else:
            reader = self._cached(own, wanted, predicted)
        if kind.causal and not same and wanted.logits:
            return OfStudentsWords(reader, torch.tensor(numbers_of_words(self.model.encoder, rows.encoder)))
        return reader

    def _known(self, size: str, what: str) -> int:
        """Return a size of the network.

        Raises:
            UserError: It has none, as an adapted module.
        """
        found: int | None = getattr(shape_of(self.model.model.config), size)
        if found is None:
            raise UserError(
                f"teacher {self.model.name} has no {what} that are known here, only logits; take distill.logits"
            )
        return found

    def refuse_lost_heads(self, wanted: SignalSpec) -> None:
        """Refuse to give queries, keys or values of a network that lacks some of its heads.

        Raises:
            UserError: If it does, and they are wanted.
        """
        if (wanted.queries or wanted.keys or wanted.values) and not has_all_heads(self.model.model):
            raise UserError(
                f"teacher {self.model.name} has lost attention heads, so its attention cannot be compared; distil its "
                "logits or hidden states, or take the teacher from before its heads were cut"
            )

    def kept_in(self, cache: Path) -> ModelTeacher:
        """Return the same teacher, whose signals are kept in a folder of the caller's."""
        return replace(self, cache=cache)

    def _cached(self, rows: EncodedDataset, wanted: SignalSpec, predicted: int) -> CachedReader:
        bf16 = mixed_precision(self.precision) == "bf16"
        words = [self.digest, rows.examples.digest, str(wanted), str(VERSION), *(["bf16"] if bf16 else [])]
        folder = (self.cache or home() / "signals") / hashlib.sha256("|".join(words).encode()).hexdigest()[:32]
        with exclusive(folder):
            if not (folder / "layout.json").is_file():
                size, form = predicted / 2**20, ", in bf16" if bf16 else ""
                logger.info("computing outputs of %s over %d rows (%.1f MB%s)", self.model.name, len(rows), size, form)
                write_signals(folder, self.model, rows, wanted, bf16)
        return CachedReader(folder, rows, wanted)


@dataclass(frozen=True)
class OnOwnInputs:
    """Runs a teacher whose tokens have other ids than the student's, on its own rows of the same tokens."""

    live: LiveReader
    rows: EncodedDataset

    def __call__(self, batch: Batch) -> Signals:
        """Return the teacher's outputs on the texts of this batch."""
        own = replace(batch, inputs=self.rows.inputs(batch.rows.tolist()))
        return self.live(own.to(batch.rows.device))


@dataclass(frozen=True)
class OfStudentsWords:
    """Gives logits ``[B, L, V]`` over the vocabulary of the student, which is a part of the teacher's.

    Attributes:
        reader: Gives them over the teacher's.
        numbers: The id of each token of the student in the teacher's vocabulary, ``[V]``.
    """

    reader: Reader
    numbers: Tensor

    def __call__(self, batch: Batch) -> Signals:
        """Return the signals of a batch."""
        found = self.reader(batch)
        return replace(found, logits=found.logits[..., self.numbers.to(found.logits.device)])


def predicted_bytes(model: TaskModel, lengths: Sequence[int], wanted: SignalSpec) -> int:
    """Return the size on disk of a teacher's outputs for inputs of these lengths, in bytes."""
    config, tokens = model.model.config, sum(lengths)
    shape = shape_of(config)
    outputs = kind_of(model.task.kind).width(model.task.outputs, shape.hidden_size, shape.vocab_size)
    numbers = (tokens if model.task.per_token else len(lengths)) * outputs * wanted.logits
    if wanted.hidden_states:  # of a known family; an adapted module may have no such size
        numbers += tokens * len(wanted.hidden_states) * shape.hidden_size
    if projections := len(wanted.queries) + len(wanted.keys) + len(wanted.values):
        numbers += tokens * projections * attention_width(config)
    return 4 * numbers


def _own_rows(model: TaskModel, rows: EncodedDataset) -> EncodedDataset:
    return EncodedDataset(rows.examples, model.encoder, model.task)
