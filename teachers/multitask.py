"""Several tasks learned together by one encoder with a head for each; each task has its own teacher or its labels.

Liu et al. 2019, arXiv 1901.11504 (MT-DNN), with teachers: arXiv 1904.09482. The networks stay stock models that hold
the same modules, so that each can be saved and loaded by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eval.errors import UserError
from eval.task import Task
from teachers.config import Training
from teachers.encoder import share_encoder
from teachers.lessons import Lesson
from teachers.objective import Objective, TaskLoss
from teachers.signals import TeacherSource
from teachers.taskmodel import TaskModel
from teachers.training import learn


def share_encoders(models: Mapping[str, TaskModel]) -> None:
    """Let all models run the first one's encoder, in place; heads and poolers stay apart.

    Raises:
        UserError: If their encoders differ in family or shape.
    """
    first, *others = models.values()
    for other in others:
        share_encoder(first.model, other.model)


def train_together(
    models: Mapping[str, TaskModel],
    tasks: Mapping[str, Task],
    objectives: Mapping[str, Objective] | None = None,
    training: Training | None = None,
    *,
    seed: int = 13,
    teachers: Mapping[str, TeacherSource] | None = None,
    folder: Path | None = None,
    identity: str = "",
) -> list[dict[str, Any]]:
    """Train one encoder on several tasks, in place; every batch is of one task, and their batches are shuffled.

    The models come to share the encoder of the first and can then be saved one by one with ``save_taskmodel``.

    Args:
        models: One a task, with encoders of one family and shape.
        tasks: Data by the same names.
        objectives: What is minimised, such as ``LogitDistillation().make_objective(inputs)``; a task that is not
            named here learns from its labels.
        training: How; ``epochs`` are passes over the data of all tasks, ``keep`` goes by the mean score.
        seed: Decides order, dropout and masks.
        teachers: Whose agreement with the students the history tells; optional.
        folder: Where checkpoints go.
        identity: Further words that make a run what it is.

    Returns:
        The history: one entry an epoch, with losses and scores named ``task.name`` and ``score`` their mean. A loss is
        that of its task's batches divided by the number of all, so that they add up.

    Raises:
        UserError: If names or encoders do not fit together, or there is nothing to train on.
        DivergedError: If a loss is not finite, or a student collapses.
    """
    objectives, teachers = objectives or {}, teachers or {}
    unknown = sorted((set(objectives) | set(teachers)) - set(tasks))
    if not models or set(models) != set(tasks) or unknown:
        raise UserError(
            f"models {sorted(models)}, tasks {sorted(tasks)}"
            + (f", objectives or teachers for {unknown}" if unknown else "")
            + ": give one model for each task, under the same name"
        )
    share_encoders(models)
    lessons = [
        Lesson(
            model, tasks[name].train, objectives.get(name, TaskLoss()), tasks[name].validation, teachers.get(name), name
        )
        for name, model in models.items()
    ]
    return learn(lessons, training, seed=seed, folder=folder, identity=f"{identity} {' '.join(models)}")
