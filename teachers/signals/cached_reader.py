"""Teacher outputs on disk: computed once over all rows, and read by the batch."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import PositiveInt

from eval.cost.size import device_of
from eval.errors import UserError
from eval.files.typed_json import read_values, typed
from eval.files.writing import atomic_folder
from eval.inference import batches_by_length
from eval.progress.stages import counted
from teachers.data.encoded_dataset import Batch, EncodedDataset
from teachers.signals.hooks import INNER, Signals, SignalSpec
from teachers.signals.live_reader import LiveReader
from teachers.taskmodel import TaskModel

Layout = dict[Literal["logits", "hidden_states", "queries", "keys", "values"], list[Literal["L"] | PositiveInt]]
"""Shape of each signal of a row, by its name; L is the row's tokens."""


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

    Args:
        folder: Becomes ``layout.json`` and one flat float32 array a signal, all at once.
        model: The teacher.
        rows: What it reads.
        wanted: Which signals.
        bf16: Whether it runs in bf16, where that is safe, as a network does that is trained so.

    Raises:
        CompressError: There is not as much space.
    """
    with atomic_folder(folder, "teacher outputs") as beside, model.on_gpu():
        layout: dict[str, list[Any]] = {}
        arrays: dict[str, np.ndarray] = {}
        live = LiveReader(model, wanted)
        starts: dict[str, np.ndarray] = {}
        batches = batches_by_length(rows.lengths, 32)
        for indices in counted(batches, f"outputs of {model.name}", len(rows)):
            batch = rows.batch(indices).to(device_of(model.model))
            with torch.autocast(batch.rows.device.type, torch.bfloat16, enabled=bf16):
                signals = live(batch)
            for name, array in _stacked(signals).items():
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
