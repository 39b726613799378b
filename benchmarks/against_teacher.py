"""Speedup of exports over their teacher in eager torch, and their score.

    python -m benchmarks.against_teacher TEACHER EXPORT… --data FOLDER [--speeds 0.5 0.7] [--threads 1 2] [--fill]

All are timed in turn in one run: latency at batch size 1, each sentence at its own length, from token ids to
logits; and throughput on the validation split, from texts to predictions. The teacher's throughput is measured as most
programs run it, in unsorted batches padded to the longest sentence; exports run by ``compress.export.runtime``.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.archive import keep
from benchmarks.results import DOCS, fill
from compress.artifact.artifact import Artifact
from compress.export.runtime.answering import Runtime
from eval.cost.latency import latency
from eval.cost.machine import in_one_line, machine
from eval.cost.timing import interleave
from eval.data.loading import load_task
from eval.inference import Predictor, predict
from eval.measurement import measure
from eval.task import Examples, Task

TEACHER = "teacher, torch in eager mode"
BATCH = 16


@dataclass(frozen=True)
class Row:
    """Measurements of one model, the teacher or an export.

    Attributes:
        threads: Threads of one operator.
        name: The model.
        megabytes: Size of what is loaded.
        score: The task's metric on the validation split.
        mean_ms: Mean latency at batch size 1.
        median_ms: Median latency at batch size 1.
        per_second: Throughput in sentences per second.
    """

    threads: int
    name: str
    megabytes: float
    score: float
    mean_ms: float
    median_ms: float
    per_second: float


def unsorted(model: Predictor, examples: Examples) -> None:
    """Run batches of sentences in their original order, each padded to its longest sentence."""
    for start in range(0, len(examples), BATCH):
        model.forward(model.encoder.collate(model.encoder.encode(examples[start : start + BATCH])))


def rows(models: Mapping[str, Predictor], task: Task, threads: int, seconds: float) -> list[Row]:
    """Time all models in turn, the first on unsorted batches, for ``seconds`` per model and case."""
    examples = task.validation
    first, *others = models

    def stream(name: str) -> Callable[[int], object]:
        return lambda number: predict(models[name], examples, BATCH)

    runs: dict[str, Callable[[int], object]] = {first: lambda number: unsorted(models[first], examples)}
    streamed = interleave(runs | {name: stream(name) for name in others}, seconds)
    alone = {row.name: row for row in latency(models, examples, batch=(1,), seconds=seconds)}
    found = []
    for name, model in models.items():
        result, row = measure(model, task), alone[name]
        mean_ms, per_second = 1000 / row.examples_per_second, len(examples) / median(streamed[name])
        found.append(Row(threads, name, result.bytes / 1e6, result.score, mean_ms, row.p50_ms, per_second))
    return found


def table(measured: list[Row]) -> str:
    """Return the Markdown table; each export is compared with the teacher at the same number of threads."""
    heads = ["threads", "model", "MB", "score", "% of teacher score", "batch size 1, mean ms"]
    heads += ["speedup", "median ms", "speedup", "throughput, sentences/s", "speedup"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for row in measured:
        teacher = next(other for other in measured if other.name == TEACHER and other.threads == row.threads)
        cells = [str(row.threads), row.name, f"{row.megabytes:.1f}", f"{row.score:.4f}"]
        cells += [f"{row.score / teacher.score:.1%}", f"{row.mean_ms:.2f}", f"{teacher.mean_ms / row.mean_ms:.1f}"]
        cells += [f"{row.median_ms:.2f}", f"{teacher.median_ms / row.median_ms:.1f}"]
        cells += [f"{row.per_second:.0f}", f"{row.per_second / teacher.per_second:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def report(found: Mapping[str, Any]) -> str:
    """Return the table and the machine, from what this program keeps in benchmarks/results."""
    return f"{table([Row(**row) for row in found['rows']])}\n\n{in_one_line(found['machine'])}"


def opened(folder: Path, speeds: list[float], threads: int) -> dict[str, Predictor]:
    """Return an export by its name; one with early exit at each of the speeds."""
    export = Runtime(folder, threads, spinning=False)
    if export.manifest.get("speed") is None or not speeds:
        return {export.name: export}
    return {f"{export.name}, {speed:g}": Runtime(folder, threads, spinning=False, speed=speed) for speed in speeds}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("teacher", type=Path)
    parser.add_argument("exports", type=Path, nargs="+")
    parser.add_argument("--data", required=True, help="folder of the task's data")
    parser.add_argument("--speeds", type=float, nargs="*", default=[], help="of exports with early exit")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, len(os.sched_getaffinity(0))])
    parser.add_argument("--seconds", type=float, default=20.0, help="per model and case")
    parser.add_argument("--fill", action="store_true", help="put the table into docs/results/combined.md")
    given = parser.parse_args()
    teacher = Artifact.from_pretrained(given.teacher)
    task = load_task(teacher.task.kind, data=given.data, metric=teacher.task.metric)
    measured: list[Row] = []
    for threads in given.threads:
        torch.set_num_threads(threads)
        models: dict[str, Predictor] = {TEACHER: teacher}
        for folder in given.exports:
            models |= opened(folder, given.speeds, threads)
        measured += rows(models, task, threads, given.seconds)
    found = {"machine": machine(), "rows": [asdict(row) for row in measured]}
    print(report(found))
    if given.fill:
        fill(DOCS / "combined.md", "against-teacher", report(keep("against-teacher", found)))


if __name__ == "__main__":
    main()
