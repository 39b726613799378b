"""What a teacher tells a student: logits and, on request, hidden states and attention; computed once, kept on disk."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from pydantic import PositiveInt
from torch import Tensor

from eval.cost.size import device_of
from eval.errors import UserError
from eval.files.typed_json import read_values, typed
from eval.files.writing import atomic_folder, exclusive
from eval.inference import Answer, batches_by_length, predict
from eval.kinds.kind_registry import kind_of
from eval.progress.stages import counted
from eval.task import Examples
from teachers.anatomy.attention_heads import has_all_heads
from teachers.anatomy.encoder import attention_width, has_plain_attention, shape_of
from teachers.anatomy.head_bias import score_bias
from teachers.data.encoded_dataset import Batch, EncodedDataset
from teachers.file_digests import config_values
from teachers.home import home
from teachers.signals.hooks import INNER, NOTHING, Signals, SignalSpec
from teachers.signals.live_reader import LiveReader
from teachers.signals.same_tokens import numbers_of_words, reads_alike, same_pieces
from teachers.taskmodel import TaskModel

logger = logging.getLogger("teachers.signals.model_teacher")

VERSION = 3
"""Raised when the same teacher and data give other numbers or another layout on disk."""

BUDGET_BYTES = 4 * 2**30
"""Most bytes one cache of signals may take unless the teacher says otherwise; beyond it the teacher runs live."""


Layout = dict[Literal["logits", "hidden_states", "queries", "keys", "values"], list[Literal["L"] | PositiveInt]]
"""Shape of each signal of a row, by its name; L is the row's tokens."""


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
    """

    model: TaskModel
    cache: Path | None = None
    budget_bytes: int = BUDGET_BYTES

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
        words = [self.digest, rows.examples.digest, str(wanted), str(VERSION)]
        folder = (self.cache or home() / "signals") / hashlib.sha256("|".join(words).encode()).hexdigest()[:32]
        with exclusive(folder):
            if not (folder / "layout.json").is_file():
                size = predicted / 2**20
                logger.info("computing outputs of %s over %d rows (%.1f MB)", self.model.name, len(rows), size)
                _write_cache(folder, self.model, rows, wanted)
        return CachedReader(folder, rows, wanted)


@dataclass(frozen=True)
class OnOwnInputs:
    """Runs a teacher whose tokens have other ids than the student's, on its own rows of the same tokens."""

    live: LiveReader
    rows: EncodedDataset

    def __call__(self, batch: Batch) -> Signals:
        """Return the teacher's outputs on the texts of this batch."""
        return self.live(self.rows.batch(batch.rows.tolist()).to(batch.rows.device))


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


class CachedReader:
    """Reads signals from a folder written by ``ModelTeacher``; arrays are mapped, not loaded.

    Args:
        folder: Holds ``layout.json`` and one flat float32 array a signal.
        rows: The rows in the order they were written.

    Raises:
        UserError: If the folder is damaged.
    """

    def __init__(self, folder: Path, rows: EncodedDataset, wanted: SignalSpec) -> None:
        self.rows, self.wanted = rows, wanted
        try:
            cure = "remove the folder"
            found = read_values(folder / "layout.json", cure)
            layout: dict[str, list[Any]] = typed(found, Layout, f"{folder}/layout.json", cure)
            self.arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in layout}
        except (OSError, ValueError) as error:
            raise UserError(
                f"{folder}: this cache of teacher outputs is damaged ({error}); remove the folder"
            ) from error
        self.layout = layout
        self.starts = {name: _starts(shape, rows.tokens) for name, shape in layout.items()}
        for name, starts in self.starts.items():
            if len(self.arrays[name]) != starts[-1]:
                raise UserError(f"{folder}: {name}.npy does not fit the data; remove the folder")

    def __call__(self, batch: Batch) -> Signals:
        """Return the signals of these rows, padded with 0 like the batch; of branches (K-BERT) there are none."""
        length = batch.inputs["input_ids"].shape[1]
        arrays = {name: self._padded(name, batch.rows.tolist(), length) for name in self.layout}
        tensors = {name: torch.from_numpy(array).to(batch.rows.device) for name, array in arrays.items()}
        stacked: dict[str, Any] = {
            name: {place: tensors[name][:, i] for i, place in enumerate(getattr(self.wanted, name))} for name in INNER
        }
        return Signals(tensors.get("logits", torch.empty(0)), **stacked)

    def _padded(self, name: str, rows: list[int], length: int) -> np.ndarray:
        shape = self.layout[name]
        starts, flat = self.starts[name], self.arrays[name]
        full = np.zeros((len(rows), *(length if part == "L" else part for part in shape)), dtype=np.float32)
        for position, row in enumerate(rows):
            tokens, of_text = self.rows.tokens[row], self.rows.features[row].of_text
            values = flat[starts[row] : starts[row + 1]].reshape([tokens if part == "L" else part for part in shape])
            place = self.rows.encoder.place(of_text, length)
            index: tuple[Any, ...] = (position, *(place if part == "L" else slice(None) for part in shape))
            full[index] = values[tuple(slice(of_text) if part == "L" else slice(None) for part in shape)]
        return full


def _starts(shape: list[Any], lengths: Sequence[int]) -> np.ndarray:
    fixed = int(np.prod([part for part in shape if part != "L"], dtype=np.int64))
    sizes = np.asarray(lengths, dtype=np.int64) ** shape.count("L") * fixed
    return np.concatenate([[0], np.cumsum(sizes)])


def _write_cache(folder: Path, model: TaskModel, rows: EncodedDataset, wanted: SignalSpec) -> None:
    with atomic_folder(folder, "teacher outputs") as beside, model.on_gpu():
        layout: dict[str, list[Any]] = {}
        arrays: dict[str, np.ndarray] = {}
        live = LiveReader(model, wanted)
        starts: dict[str, np.ndarray] = {}
        batches = batches_by_length(rows.lengths, 32)
        for indices in counted(batches, f"outputs of {model.name}", len(rows)):
            batch = rows.batch(indices).to(device_of(model.model))
            for name, array in _stacked(live(batch)).items():
                if name not in layout:
                    layout[name] = _layout(name, array)
                    starts[name] = _starts(layout[name], rows.tokens)
                    arrays[name] = _reserved(beside / f"{name}.npy", int(starts[name][-1]))
                _store(arrays[name], starts[name], layout[name], array, batch.rows.tolist(), rows)
        for mapped in arrays.values():
            mapped.flush()  # type: ignore[attr-defined]
        (beside / "layout.json").write_text(json.dumps(layout), encoding="utf-8")


def _reserved(file: Path, numbers: int) -> np.ndarray:
    """Return float32 numbers ``[numbers]`` in a file whose space is reserved: a map into a full disk ends in SIGBUS.

    Raises:
        OSError: If there is not as much space.
    """
    array = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=(numbers,))
    if hasattr(os, "posix_fallocate"):
        with file.open("r+b") as opened:
            os.posix_fallocate(opened.fileno(), 0, file.stat().st_size)
    return array


def _stacked(signals: Signals) -> dict[str, np.ndarray]:
    found = {"logits": signals.logits.float().cpu().numpy()} if len(signals.logits) else {}
    for name in INNER:
        if tensors := getattr(signals, name):
            found[name] = torch.stack(list(tensors.values()), dim=1).float().cpu().numpy()
    return found


def _layout(name: str, array: np.ndarray) -> list[Any]:
    if name == "logits":
        return ["L", array.shape[-1]] if array.ndim == 3 else [array.shape[-1]]
    return [array.shape[1], "L", array.shape[-1]]


def _store(
    flat: np.ndarray, starts: np.ndarray, shape: list[Any], array: np.ndarray, indices: list[int], rows: EncodedDataset
) -> None:
    length = max(rows.tokens[i] for i in indices)
    for values, row in zip(array, indices, strict=True):
        place = rows.encoder.place(rows.tokens[row], length)
        own = values[tuple(place if part == "L" else slice(None) for part in shape)]
        flat[starts[row] : starts[row + 1]] = own.reshape(-1)


def _own_rows(model: TaskModel, rows: EncodedDataset) -> EncodedDataset:
    return EncodedDataset(rows.examples, model.encoder, model.task)
