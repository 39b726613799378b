"""Scaling of the latency of an export with tokens, rows, layers and width.

    python -m benchmarks.scaling [--threads 1] [--seconds 0.5] [--out benchmarks/results]     # and docs/results/plots

Random weights, because only shapes matter; int8 exports with per-token dynamic quantization, in ONNX Runtime, timed
alternately in a random order. One dimension is varied at a time, starting from MiniLM-L6's shape (6 layers x 384, one
row of 32 tokens).
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.distillation_step import base
from benchmarks.results import DOCS
from compress.artifact.artifact import Artifact
from compress.export import export_onnx
from compress.export.runtime.answering import Runtime
from compress.student.student import Student
from eval.cost.machine import machine
from eval.cost.timing import interleave
from eval.report.plots import plain_ticks, render, write_themes
from eval.task import TaskSpec

HEAD = 32
"""Channels of a head, as in MiniLM-L6."""
USUAL = {"layers": 6, "width": 384, "rows": 1, "tokens": 32}
VARIED = {
    "tokens": (8, 16, 32, 64, 128, 256, 512),
    "rows": (1, 2, 4, 8, 16, 32),
    "layers": (1, 2, 3, 4, 6, 12),
    "width": (96, 192, 384, 768),
}


def export(folder: Path, layers: int, width: int) -> Runtime:
    """Export a network of this shape once, and open it."""
    place = folder / f"{layers}-{width}"
    if not place.exists():
        spec = TaskSpec(kind="classification", labels=("a", "b"))
        teacher = Artifact.from_pretrained(base(), spec)
        shape = {"layers": layers, "hidden_size": width, "heads": width // HEAD, "intermediate_size": 4 * width}
        export_onnx(Student(**shape, init="random").build(teacher), place, int8=True, agreement=0.0)
    return Runtime(place, spinning=False)


def inputs(rows: int, tokens: int) -> dict[str, Any]:
    """Return random tokens without padding."""
    ids = np.random.default_rng(13).integers(1000, 20000, (rows, tokens))
    return {"input_ids": ids, "attention_mask": ids * 0 + 1, "token_type_ids": ids * 0}


def measure(folder: Path, seconds: float) -> dict[str, dict[int, float]]:
    """Return for each varied dimension its values and the milliseconds of a batch."""
    found: dict[str, dict[int, float]] = {}
    for name, values in VARIED.items():
        runs = {}
        for value in values:
            shape = USUAL | {name: value}
            model, batch = export(folder, shape["layers"], shape["width"]), inputs(shape["rows"], shape["tokens"])
            runs[str(value)] = lambda _, model=model, batch=batch: model.forward(batch)
        times = interleave(runs, seconds)
        found[name] = {int(value): 1000 * float(np.median(taken)) for value, taken in times.items()}
        print(name, {value: round(ms, 2) for value, ms in found[name].items()}, flush=True)
    return found


def growth(found: dict[str, dict[int, float]]) -> Any:
    """Return a function that draws milliseconds against each varied dimension."""

    def draw(figure: Any, theme: Any) -> None:
        for axes, (name, points) in zip(figure.subplots(2, 2).flat, found.items(), strict=True):
            axes.plot(list(points), list(points.values()), color=theme.series[0], marker="o", markersize=4)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xticks(list(points), [str(value) for value in points])
            axes.minorticks_off()
            plain_ticks(axes.yaxis)
            axes.set_xlabel(name)
            axes.set_ylabel("ms")

    return draw


def main() -> None:
    """Measure, write and draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.5, help="per point")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(given.threads)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), given.seconds)
    given.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"machine": machine(), "threads": given.threads, "milliseconds": found}, indent=1)
    (given.out / "scaling.json").write_text(text + "\n", encoding="utf-8")
    write_themes(DOCS / "plots", "scaling", render(growth(found), width=7.2, height=5.0))


if __name__ == "__main__":
    main()
