"""Cost of a TinyBERT step relative to the student's own step plus the teacher's forward pass, and peak memory.

    COMPRESS_DATA=… python -m benchmarks.tinybert_step [--rounds 12] [--fill]

MiniLM-L6 as teacher, a student of 3 of its layers, real sentences of SST-2, batches of 32 in the project's training
loop; hidden states and attention scores are computed live, nothing is read from disk. Every round runs the three
variants alternately on the same batches. Peak memory is that of a fresh process that only runs such a training.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.distillation_step import base, timed
from benchmarks.rounds import arguments, tell, timed_in_rounds
from compress.distill.tinybert import TinyBertDistillation
from compress.student.student import Student
from compress.technique import Inputs
from eval.cost.memory import peak_memory
from eval.data.loading import load_task
from eval.task import Examples
from teachers.data.batches import LengthGroupedBatches
from teachers.losses.loss import Objective
from teachers.losses.task_loss import TaskLoss
from teachers.signals.hooks import NOTHING
from teachers.signals.live_reader import LiveReader
from teachers.signals.model_teacher import ModelTeacher
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
    """Measure, print and keep."""
    given = arguments(__doc__ or "").parse_args()
    memory = peak_memory(MEMORY)
    teacher, student, examples = networks()
    tinybert = both_losses(teacher)
    ways: dict[str, Callable[[], float]] = {
        "student's step on the labels": lambda: timed(student, examples, TaskLoss()),
        "teacher's forward pass": lambda: forward_seconds(teacher, examples),
        "TinyBERT step, teacher live": lambda: timed(student, examples, tinybert),
    }
    seconds = timed_in_rounds(ways, given.rounds)
    ratios = [whole / (step + forward) for step, forward, whole in zip(*seconds.values(), strict=True)]
    found = {
        "seconds": seconds,
        "batches": SENTENCES // 32,
        "ratios": {f"TinyBERT / (step + forward), at most {LIMIT}": ratios},
        "others": {
            "peak memory of a process that only trains so, MiB": f"{memory.bytes / 2**20:.0f}",
            "of it for the training, MiB": f"{memory.rise_bytes / 2**20:.0f}",
        },
    }
    tell("tinybert-step", found, given.fill)


if __name__ == "__main__":
    main()
