"""This project's exports, written by the public ``export`` and run by the public ``Runtime``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engines.engine import Array, Engine, Files, Inputs, Run
from benchmarks.engines.openvino import OPENVINO


class Ours(Engine):
    """What ``compress export MODEL --to onnx --fp32`` writes."""

    name = "ours, float32"
    packages: tuple[str, ...] = ("onnxruntime",)
    target = "onnx"
    int8 = False
    has_data = True

    def prepare(self, files: Files, place: Path) -> None:
        """Export the model."""
        from compress import load
        from compress.export import export

        model = load(files.model)
        data: dict[str, Any] = {}
        if self.has_data:
            data = {"examples": files.texts("gate"), "calibration": files.texts("calibration")}
        export(model, place / "export", self.target, int8=self.int8, **data)

    def load(self, files: Files, place: Path, threads: int) -> Run:
        """Open the export; idle threads do not spin, as other engines run then."""
        from compress.export.runtime.answering import Runtime

        self.export = Runtime(place / "export", threads, spinning=False)
        return lambda inputs: self.export.forward(dict(inputs))

    def stream(self, run: Run, batches: Sequence[Inputs]) -> list[Array]:
        """Group the inputs of a stream anew, as ``Runtime.stream`` does for every user."""
        rows = [{name: array[row] for name, array in batch.items()} for batch in batches for row in range(count(batch))]
        lengths = [int(row["attention_mask"].sum()) for row in rows]
        found: list[Array] = [np.empty(0)] * len(rows)

        def together(group: Sequence[int]) -> dict[str, Array]:
            shape = len(group), max(lengths[index] for index in group)  # rows lie in batches that are padded farther
            made = {name: np.zeros(shape, array.dtype) for name, array in rows[0].items()}
            for row, index in enumerate(group):
                for name, array in made.items():
                    array[row, : lengths[index]] = rows[index][name][: lengths[index]]
            return made

        groups, at_a_time = self.export.batches(lengths)
        inputs = map(together, groups)
        answers = self.export.forward_many(inputs) if at_a_time else map(self.export.forward_counted, inputs)
        for group, (several, _) in zip(groups, answers, strict=True):
            for index, logits in zip(group, several, strict=True):
                found[index] = logits
        ends = np.cumsum([count(batch) for batch in batches])
        return [np.stack(found[end - count(batch) : end]) for end, batch in zip(ends, batches, strict=True)]


class OursInt8(Ours):
    """What ``--int8`` gives with ``--data`` and without a further word."""

    name = "ours, int8"
    int8 = True


class OursInt8WithoutData(OursInt8):
    """What ``--int8`` gives without ``--data``."""

    name = "ours, int8, without data"
    has_data = False


class OptimizedWithoutData(Ours):
    """What ``compress optimize MODEL`` gives for the folder of transformers' Trainer, in the forms that run here."""

    name = "ours, optimize without data"
    source = "trainer"

    def prepare(self, files: Files, place: Path) -> None:
        """Let it choose."""
        from compress import optimize

        done = optimize(files.folder / self.source, out=place / "optimized")
        done.export.rename(place / "export")


class OursOpenVino(Ours):
    """``--to openvino --fp32``."""

    name = "ours, OpenVINO"
    target = "openvino"
    environment = OPENVINO
    packages = ("openvino",)


class OursOpenVinoInt8(OursOpenVino, OursInt8):
    """``--to openvino --int8``."""

    name = "ours, OpenVINO, int8"


def count(batch: Inputs) -> int:
    """Return how many inputs a batch has."""
    return len(batch["input_ids"])
