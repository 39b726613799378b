"""Teacher outputs on disk: computed once over all rows, and read by the batch."""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, PositiveInt

from eval.cost.size import device_of
from eval.errors import UserError
from eval.files.typed_json import read_values, typed
from eval.files.writing import atomic_folder, atomic_write
from eval.inference import batches_by_length
from eval.progress.stages import counted
from teachers.data.encoded_dataset import Batch, EncodedDataset
from teachers.few_shapes import keep_few_shapes
from teachers.signals.hooks import INNER, Signals, SignalSpec
from teachers.signals.live_reader import LiveReader
from teachers.taskmodel import TaskModel

logger = logging.getLogger(__name__)

Layout = dict[Literal["logits", "hidden_states", "queries", "keys", "values"], list[Literal["L"] | PositiveInt]]
"""Shape of each signal of a row, by its name; L is the row's tokens."""
PROGRESS = "progress.json"
SAVED_EVERY = 30.0
"""Seconds after which it is made sure that what was computed is on the disk."""


class CachedReader:
    """Reads signals from a folder; arrays are mapped, not loaded.

    Args:
        folder: What ``write_signals`` wrote.
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


def write_signals(folder: Path, model: TaskModel, rows: EncodedDataset, wanted: SignalSpec, bf16: bool = False) -> None:
    """Run a teacher once over all rows, and write its signals for a ``CachedReader``.

    What an interrupted call has computed is kept beside the folder, and the next call goes on there.

    Args:
        folder: Becomes ``layout.json`` and one flat float32 array a signal, all at once. Nobody else may make it now.
        model: The teacher.
        rows: What it reads.
        wanted: Which signals.
        bf16: Whether it runs in bf16, where that is safe, as a network does that is trained so.

    Raises:
        CompressError: There is not as much space; nothing is kept then.
    """
    working = folder.with_name(folder.name + ".working")
    with atomic_folder(folder, "teacher outputs") as beside, model.on_gpu():
        try:
            written = _Written.found(working, rows)
            batches = list(batches_by_length(rows.lengths, 32))
            left = batches[written.batches :]
            many = sum(map(len, left))
            if written.batches:
                logger.info("outputs of %s: resuming after %d of %d", model.name, len(rows) - many, len(rows))
            live = LiveReader(model, wanted)
            keep_few_shapes(device_of(model.model).type)
            for indices in counted(left, f"outputs of {model.name}", many):
                batch = rows.batch(indices).to(device_of(model.model))
                with torch.autocast(batch.rows.device.type, torch.bfloat16, enabled=bf16):
                    signals = live(batch)
                written.add(_stacked(signals), batch.rows.tolist())
            written.move(beside)
        except OSError:
            shutil.rmtree(working, ignore_errors=True)
            raise


class _Progress(BaseModel):
    layout: Layout
    batches: PositiveInt


@dataclass
class _Written:
    """Signals of the first batches, in a folder where a later call finds them.

    Attributes:
        folder: The folder.
        rows: All rows.
        batches: How many batches are written.
        layout: As ``layout.json`` will be.
        arrays: The flat array of each signal, mapped, with space for all rows.
        starts: Where the numbers of each row begin in it.
        saved: When all that was written was on the disk, in seconds of a steady clock.
    """

    folder: Path
    rows: EncodedDataset
    batches: int = 0
    layout: dict[str, list[Any]] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    starts: dict[str, np.ndarray] = field(default_factory=dict)
    saved: float = field(default_factory=time.monotonic)

    @classmethod
    def found(cls, folder: Path, rows: EncodedDataset) -> _Written:
        """Open what an interrupted call left; where there is nothing, or damage, begin anew."""
        try:
            progress = typed(read_values(folder / PROGRESS, ""), _Progress, PROGRESS, "")
            layout: dict[str, list[Any]] = progress.layout
            arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r+") for name in layout}
            starts = {name: _starts(shape, rows.tokens) for name, shape in layout.items()}
            if all(len(arrays[name]) == starts[name][-1] for name in layout):
                return cls(folder, rows, progress.batches, layout, arrays, starts)
        except (UserError, OSError, ValueError):
            pass
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return cls(folder, rows)

    def add(self, found: Mapping[str, np.ndarray], indices: list[int]) -> None:
        """Write the signals of the next batch.

        Raises:
            OSError: There is no space for all rows.
        """
        for name, array in found.items():
            if name not in self.layout:
                self.layout[name] = _layout(name, array)
                self.starts[name] = _starts(self.layout[name], self.rows.tokens)
                self.arrays[name] = _reserved(self.folder / f"{name}.npy", int(self.starts[name][-1]))
            _store(self.arrays[name], self.starts[name], self.layout[name], array, indices, self.rows)
        self.batches += 1
        if time.monotonic() - self.saved >= SAVED_EVERY:
            self._flush()
            progress = {"layout": self.layout, "batches": self.batches}
            atomic_write(self.folder / PROGRESS, json.dumps(progress).encode())
            self.saved = time.monotonic()

    def move(self, folder: Path) -> None:
        """Move the arrays of all rows into another folder of the same disk, and write their layout there."""
        self._flush()
        for name in self.arrays:
            os.replace(self.folder / f"{name}.npy", folder / f"{name}.npy")
        (folder / "layout.json").write_text(json.dumps(self.layout), encoding="utf-8")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _flush(self) -> None:
        for mapped in self.arrays.values():
            mapped.flush()  # type: ignore[attr-defined]


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
