"""Score, layers and latency of a model with early exit, by speed.

    python -m benchmarks.early_exit runs/sst2-early-exit/model --data data/sst2 [--int8] [--speeds 0 0.1 0.3 …]

Scores and layers are those of the ONNX export on the validation split; latency is at batch size 1, from token ids to
logits, in wall-clock time. In each round all sentences run at all speeds, and in the network without exits, in a random
order (``eval.cost.timing``); the median over rounds counts for each sentence.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from compress.artifact.artifact import Artifact
from compress.export import export_onnx
from compress.export.runtime.answering import Runtime
from eval.cost.machine import machine
from eval.cost.timing import interleave
from eval.data.loading import Task, load_task
from eval.inference import Predictor
from eval.measurement import measure
from eval.task import Examples
from teachers.taskmodel import TaskModel

SPEEDS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
SENTENCES = 200
"""Sentences that are timed: the first of the split."""


@dataclass(frozen=True)
class Point:
    """One speed, or the network without exits.

    Attributes:
        speed: None for the network without exits.
        score: The task's metric.
        layers: Mean number of layers that ran.
        mean_ms: Mean latency at batch size 1.
        p50_ms: Median latency.
        p95_ms: 95th percentile of the latency.
    """

    speed: float | None
    score: float
    layers: float
    mean_ms: float
    p50_ms: float
    p95_ms: float


def curve(
    model: TaskModel,
    task: Task,
    folder: Path,
    speeds: Sequence[float] = SPEEDS,
    int8: bool = False,
    threads: int = 1,
    seconds: float = 10.0,
) -> list[Point]:
    """Export a model with early exit, and its network without exits, into ``folder`` and measure both.

    Args:
        model: A model with early exit.
        task: The task; its validation split is scored.
        folder: Where the two exports go.
        speeds: The speeds to measure.
        int8: Whether the exports are 8-bit.
        threads: Threads of an operator.
        seconds: Time for each speed.

    Returns:
        The network without exits first, then one point per speed.
    """
    plain = replace(model, model=model.model.inner, name="without exits")
    for part, name in ((plain, "plain"), (model, "exits")):
        export_onnx(part, folder / name, int8=int8, examples=task.validation)
    runtimes: dict[float | None, Runtime] = {None: Runtime(folder / "plain", threads, spinning=False)}
    runtimes |= {speed: Runtime(folder / "exits", threads, spinning=False, speed=speed) for speed in speeds}
    times = milliseconds(runtimes, task.validation[:SENTENCES], seconds)
    points = []
    for speed, runtime in runtimes.items():
        result, spent = measure(runtime, task), times[speed]
        layers = model.model.stops[-1] if result.layers is None else result.layers
        p50, p95 = np.percentile(spent, [50, 95])
        points.append(Point(speed, result.score, layers, float(np.mean(spent)), float(p50), float(p95)))
    return points


def milliseconds(
    models: Mapping[float | None, Predictor], examples: Examples, seconds: float
) -> dict[float | None, list[float]]:
    """Return the milliseconds of each example at batch size 1 by model, the median of rounds over all examples."""

    def running(model: Predictor) -> Callable[[int], None]:
        inputs = [model.encoder.collate(model.encoder.encode([example])) for example in examples]

        def run(number: int) -> None:
            model.forward(inputs[number % len(inputs)])

        return run

    times = interleave({str(name): running(model) for name, model in models.items()}, seconds, a_round=len(examples))
    return {name: (1000 * np.median(times[str(name)], axis=0)).tolist() for name in models}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="folder of a model with early exit")
    parser.add_argument("--data", required=True, help="folder of the task's data")
    parser.add_argument("--speeds", type=float, nargs="+", default=list(SPEEDS))
    parser.add_argument("--int8", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10.0, help="per speed")
    given = parser.parse_args()
    model = Artifact.from_pretrained(given.model)
    task = load_task(model.task.kind, data=given.data, metric=model.task.metric)
    with tempfile.TemporaryDirectory() as folder:
        points = curve(model, task, Path(folder), given.speeds, given.int8, given.threads, given.seconds)
    print(f"{'speed':>14} {task.spec.metric:>10} {'layers':>7} {'mean ms':>8} {'p50 ms':>8} {'p95 ms':>8}  speedup")
    for point in points:
        name = "without exits" if point.speed is None else f"{point.speed:g}"
        speedup = points[0].mean_ms / point.mean_ms
        figures = f"{point.score:>10.4f} {point.layers:>7.2f} {point.mean_ms:>8.2f} {point.p50_ms:>8.2f}"
        print(f"{name:>14} {figures} {point.p95_ms:>8.2f}  {speedup:.2f}x")
    print(json.dumps({"points": [asdict(point) for point in points], "machine": machine()}, indent=1))


if __name__ == "__main__":
    main()
