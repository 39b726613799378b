"""Speedup of exports over their teacher, in eager torch and as its own export, and their score.

    python -m benchmarks.against_teacher TEACHER EXPORT… --data FOLDER [--speeds 0.5 0.7] [--threads 1 2] [--limit N]
                                         [--also openvino-int8]

All are timed alternately in one run with the same number of threads (``eval.cost.timing``): latency at batch size 1,
each sentence at its own length, from token ids to logits; and throughput on the validation split, from texts to
predictions, of all in batches of similar length. The teacher's own exports, float32 and int8, are what a user has
without compression: the speedup over the fastest in the same number format, in each of the two cases, is what
compression brought. --also exports the teacher for other runtimes as well; --fill puts the table into
docs/results/combined.md, at the place called --name; --limit takes so many examples of each split.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter

from benchmarks.archive import keep
from benchmarks.results import DOCS, fill
from compress.artifact.artifact import Artifact
from compress.engine.preparation import CALIBRATION
from compress.engine.reference_exports import always_for, reference_exports
from compress.export.runtime.answering import Runtime
from eval.cost.latency import LatencyRow, StreamRow, latency, stream
from eval.cost.machine import in_one_line, load_average, machine
from eval.cost.timing import Median, paired_ratio
from eval.data.loading import Task, load_task
from eval.inference import Predictor
from eval.measurement import measure

TEACHER = "teacher, torch in eager mode"
BATCH = 16
NAMES = ("against-teacher", "agnews-against-teacher", "translator-against-teacher")
"""Places of docs/results/combined.md, and what is kept for them in benchmarks/results."""


@dataclass(frozen=True)
class Row:
    """Measurements of one model, the teacher or an export.

    Attributes:
        name: The model.
        own_exports: The teacher's own exports in its number format; empty for the teacher and its exports.
        megabytes: Size of what is loaded.
        score: The task's metric on the validation split.
        alone: Latency at batch size 1.
        stream: Throughput.
    """

    name: str
    own_exports: tuple[str, ...]
    megabytes: float
    score: float
    alone: LatencyRow
    stream: StreamRow


def rows(models: Mapping[str, Predictor], own: Mapping[str, Runtime], task: Task, seconds: float) -> list[Row]:
    """Time all models alternately, for ``seconds`` per model and case.

    Args:
        models: The teacher and exports by name.
        own: The teacher's own exports by format, such as ``onnx-int8``.
        task: Its validation split is answered.
        seconds: Per model and case.
    """
    everything = {**models, **{model.name: model for model in own.values()}}
    streamed = {row.name: row for row in stream(everything, task.validation, BATCH, seconds)}
    alone = {row.name: row for row in latency(everything, task.validation, batch=(1,), seconds=seconds)}
    found = []
    for name, model in everything.items():
        result = measure(model, task)
        numbers = scheme(model) if isinstance(model, Runtime) and name in models else None
        against = tuple(other.name for other in own.values() if scheme(other) == numbers)
        found.append(Row(name, against, (result.bytes or 0) / 1e6, result.score, alone[name], streamed[name]))
    return found


def scheme(model: Runtime) -> str:
    """Return the number format of an export."""
    return str(model.manifest["scheme"])


def form(model: Runtime) -> str:
    """Return target and number format of an export, such as ``onnx-int8``."""
    return f"{model.manifest.get('target', 'onnx')}{'-int8' if scheme(model) == 'int8' else ''}"


def table(measured: Sequence[Row]) -> str:
    """Return the Markdown table of one number of threads; every speedup has its interval, and its reference named."""
    known = {row.name: row for row in measured}
    teacher = known[TEACHER]
    heads = ["threads", "model", "MB", "score", "% of teacher score", "batch size 1, mean ms", "median ms"]
    heads += [f"speedup over {TEACHER}", "over its own export", "throughput, sentences/s"]
    heads += [f"speedup over {TEACHER}", "over its own export"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for row in measured:
        own = [known[name] for name in row.own_exports]
        cells = [str(row.alone.threads), row.name, f"{row.megabytes:.1f}", f"{row.score:.4f}"]
        cells += [f"{row.score / teacher.score:.1%}", f"{1000 / row.alone.examples_per_second:.2f}"]
        cells += [f"{row.alone.p50_ms:.2f}"]
        alone = min((other.alone for other in own), key=lambda one: one.p50_ms, default=None)
        streamed = max((other.stream for other in own), key=lambda one: one.examples_per_second, default=None)
        cells += [_ratio(teacher.alone.round_ms, row.alone.round_ms)]
        cells += ["" if alone is None else _ratio(alone.round_ms, row.alone.round_ms)]
        cells += [f"{row.stream.examples_per_second:.0f}"]
        cells += [_ratio(teacher.stream.pass_seconds, row.stream.pass_seconds)]
        cells += ["" if streamed is None else _ratio(streamed.pass_seconds, row.stream.pass_seconds)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def report(found: Mapping[str, Any]) -> str:
    """Return the table and the machine, from what this program keeps in benchmarks/results."""
    measured = TypeAdapter(list[Row]).validate_python(found["rows"])
    first, *others = [table(list(rows)) for _, rows in groupby(measured, lambda row: row.alone.threads)]
    body = "\n".join([first, *("\n".join(other.splitlines()[2:]) for other in others)])
    return f"{body}\n\n{in_one_line(found['machine'])}; load of the machine at the end {found['load']}"


def _ratio(slower: Sequence[float], faster: Sequence[float]) -> str:
    found: Median = paired_ratio(slower, faster)
    return f"{found.value:.1f} [{found.low:.1f}, {found.high:.1f}]"


def opened(folder: Path, speeds: Sequence[float], threads: int) -> dict[str, Predictor]:
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
    parser.add_argument(
        "--also", nargs="*", default=[], help="more of the teacher's own exports, such as openvino-int8"
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="per model and case")
    parser.add_argument("--limit", type=int, help="examples of each split (default: all)")
    parser.add_argument("--name", choices=NAMES, default=NAMES[0], help="(%(default)s)")
    parser.add_argument("--fill", action="store_true", help="put the table into docs/results/combined.md")
    given = parser.parse_args()
    teacher = Artifact.from_pretrained(given.teacher)
    splits = [name for name in ("validation", "test") if any(Path(given.data).glob(f"{name}.*"))]
    limit = {} if given.limit is None else dict.fromkeys(splits, given.limit)
    task = load_task(teacher.task.kind, data=given.data, metric=teacher.task.metric, limit=limit)
    calibration = None if task.train is None else task.train.sample(CALIBRATION, seed=0)
    measured: list[Row] = []
    for threads in given.threads:
        torch.set_num_threads(threads)
        models: dict[str, Predictor] = {TEACHER: teacher}
        for folder in given.exports:
            models |= opened(folder, given.speeds, threads)
        forms = {form(model) for model in models.values() if isinstance(model, Runtime)} | set(given.also)
        own = reference_exports(teacher, forms, threads, calibration, always_for(teacher.task.kind))
        measured += rows(models, own.models, task, given.seconds)
    plain = TypeAdapter(list[Row]).dump_python(measured, mode="json")
    found = {"machine": machine(), "load": load_average(), "rows": plain}
    print(report(found))
    if given.fill:
        fill(DOCS / "combined.md", given.name, report(keep(given.name, found)))


if __name__ == "__main__":
    main()
