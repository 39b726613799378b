"""Cost of a TinyBERT step relative to the student's own step plus the teacher's forward pass, and peak memory.

    COMPRESS_DATA=… python -m benchmarks.tinybert_step [--rounds 12]

MiniLM-L6 as teacher, a student of 3 of its layers, real sentences of SST-2, batches of 32 in the project's training
loop; hidden states and attention scores are computed live, nothing is read from disk. Every round runs the three
variants alternately on the same batches. Peak memory is that of a fresh process that only runs such a training.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks.distillation_step import base, timed
from compress.distill.tinybert import TinyBertDistillation
from compress.student.student import Student
from compress.technique import Inputs
from eval.cost.machine import machine
from eval.cost.memory import peak_memory
from eval.data.loading import load_task
from eval.task import Examples
from teachers.data.batches import LengthGroupedBatches
from teachers.losses.loss import Objective
from teachers.losses.task_loss import TaskLoss
from teachers.signals.hooks import NOTHING
from teachers.signals.model_teacher import LiveReader, ModelTeacher
from teachers.taskmodel import TaskModel, load_taskmodel
from teachers.training.scoring import rows_of

SENTENCES = 320
"""Sentences of one round: 10 optimizer steps."""

LIMIT = 1.25
"""Upper limit of the cost of a TinyBERT step, as a multiple of student's step plus teacher's forward pass."""

MEMORY = """
from benchmarks.distillation_step import timed
from benchmarks.tinybert_step import both_losses, networks
teacher, student, examples = networks()
mark()
timed(student, examples, both_losses(teacher))
"""


def networks() -> tuple[TaskModel, TaskModel, Examples]:
    """Return the teacher, the student and the sentences."""
    task = load_task("classification", data=str(Path(os.environ.get("COMPRESS_DATA", "data")) / "sst2"))
    teacher = load_taskmodel(base(), task.spec)
    return teacher, Student(layers=(0, 2, 5)).build(teacher), task.train.sample(SENTENCES, seed=13)


def both_losses(teacher: TaskModel) -> Objective:
    """Return all losses of TinyBERT in one step, with the teacher run live."""
    return TinyBertDistillation().make_objective(Inputs(teacher=ModelTeacher(teacher, budget_bytes=0)))


def forward_seconds(teacher: TaskModel, examples: Examples) -> float:
    """Return the seconds of the teacher's plain forward passes over the batches of an epoch."""
    rows, reader = rows_of(teacher, examples, 13), LiveReader(teacher, NOTHING)
    taken = 0.0
    for indices in LengthGroupedBatches(rows.lengths, 32, 13):
        batch = rows.batch(indices)
        started = time.perf_counter()
        reader(batch)
        taken += time.perf_counter() - started
    return taken


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    rounds = parser.parse_args().rounds
    memory = peak_memory(MEMORY)
    teacher, student, examples = networks()
    tinybert = both_losses(teacher)
    ways: dict[str, Callable[[], float]] = {
        "student's step on the labels": lambda: timed(student, examples, TaskLoss()),
        "teacher's forward pass": lambda: forward_seconds(teacher, examples),
        "TinyBERT step, teacher live": lambda: timed(student, examples, tinybert),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, run in ways.items():
            taken = run()
            if number:  # the first round warms up
                seconds[name].append(taken)
    for name, values in seconds.items():
        low, middle, high = (1000 * value / (SENTENCES / 32) for value in (min(values), median(values), max(values)))
        print(f"{name:<30} {middle:8.1f} ms per batch of 32   ({low:.1f} to {high:.1f})")
    step, forward, whole = (median(values) for values in seconds.values())
    by_round = median(t / (s + f) for s, f, t in zip(*seconds.values(), strict=True))
    ratio = whole / (step + forward)
    print(f"\nTinyBERT / (step + forward)  {ratio:.3f}  (median of the rounds' ratios {by_round:.3f}; at most {LIMIT})")
    print(f"peak memory {memory.bytes / 2**20:.0f} MiB, of it {memory.rise_bytes / 2**20:.0f} MiB for the training")
    print(json.dumps({"rounds": rounds, "machine": machine()}, indent=1))


if __name__ == "__main__":
    main()
