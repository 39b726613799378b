"""Several tasks learned together by one encoder with a head for each; each task has its own teacher or its labels.

Liu et al. 2019, arXiv 1901.11504 (MT-DNN), with teachers: arXiv 1904.09482. The networks stay standard models that hold
the same modules, so that each can be saved and loaded by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eval.data.loading import Task
from eval.errors import UserError
from eval.files.home import home
from eval.proof.known_examples import remember
from teachers.anatomy.encoder import share_encoder
from teachers.finetuning.finetune import (
    FACTS,
    config_identity,
    finetune,
    keep,
    kept_teacher,
    key_of,
    task_identity,
    training_identity,
)
from teachers.losses.catalogue import NamedLoss
from teachers.losses.loss import Objective
from teachers.losses.task_loss import TaskLoss
from teachers.signals.model_teacher import TeacherSource
from teachers.taskmodel import TaskModel
from teachers.trained_once import trained_once
from teachers.training.config import Training
from teachers.training.loop import learn
from teachers.training.threshold_choice import with_thresholds
from teachers.training.training_task import TrainingTask

logger = logging.getLogger("teachers.finetuning.multitask")

VERSION = 1
"""Raised when the same models, data and settings give other teachers."""


def share_encoders(models: Mapping[str, TaskModel]) -> None:
    """Let all models run the first one's encoder, in place; heads and poolers stay apart.

    An output layer that is tied to the word embeddings is then tied to those of the first.

    Raises:
        UserError: If their encoders differ in family or shape.
    """
    first, *others = models.values()
    for other in others:
        share_encoder(first.model, other.model)
        other.model.tie_weights()


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
        The history: one entry an epoch, with losses and scores named ``task.name`` and ``score`` their mean. A term
        is the mean over its task's batches, ``loss`` the mean over all batches.

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
    training_tasks = [
        TrainingTask(
            model, tasks[name].train, objectives.get(name, TaskLoss()), tasks[name].select, teachers.get(name), name
        )
        for name, model in models.items()
    ]
    return learn(training_tasks, training, seed=seed, folder=folder, identity=f"{identity} {' '.join(models)}")


def finetune_together(
    models: Mapping[str, TaskModel],
    tasks: Mapping[str, Task],
    training: Training | None = None,
    *,
    losses: Mapping[str, NamedLoss] | None = None,
    per_task: Training | None = None,
    seed: int = 13,
) -> dict[str, tuple[TaskModel, Path]]:
    """Train one encoder on several tasks, or fetch what this very call made before: a model a task.

    An epoch holds every batch of every task once, merged and shuffled, so a task is seen as often as its data is
    large. An interrupted call goes on where it stopped.

    Args:
        models: One a task, with encoders of one family and shape; in place, they come to share the first one's.
        tasks: Data by the same names; the mean of their scores on ``task.select`` chooses the best epoch.
        training: How; the defaults of the ``training`` block otherwise.
        losses: What is minimised, for tasks that do not learn by their own loss.
        per_task: If given, each model is then fine-tuned on its own task so, starting from the shared encoder; this is
            MT-DNN's second stage.
        seed: Seeds order and dropout.

    Returns:
        For each task its teacher and the folder of it, kept under ``COMPRESS_HOME``.

    Raises:
        UserError: If names, encoders or data are unusable.
        DivergedError: If training fails.
    """
    training, losses = training or Training(), losses or {}
    empty = [name for name, task in tasks.items() if not len(task.train)]
    if empty:
        raise UserError(*(f"{name}: there is no train split to fine-tune on" for name in empty))
    training_tasks = {
        name: task_identity(models[name], task, losses.get(name)) | {"config": config_identity(models[name])}
        for name, task in tasks.items()
    }
    # The first model's encoder is what all start from, so their order tells trainings apart.
    identity = {"together": VERSION, "lessons": list(training_tasks.items()), **training_identity(training, seed)}
    if any(model.model.get_output_embeddings() is not None for model in list(models.values())[1:]):
        identity["words"] = "tied"  # once an output layer beside a shared encoder had a table of its own
    key = key_of(identity)
    folder = home() / "teachers" / f"together-{key}"
    for task in tasks.values():
        remember(task.spec.kind, task.train, task.select)

    def teach(working: Path) -> list[dict[str, Any]]:
        logger.info("training teachers %s in %s", key, folder)
        return train_together(models, tasks, losses, training, seed=seed, folder=working, identity=key)

    def write(history: list[dict[str, Any]], beside: Path) -> None:
        for name, model in models.items():
            (beside / name).mkdir()
            chosen = with_thresholds(model, tasks[name].select)
            keep(chosen, {"identity": identity, "history": history}, beside / name)

    trained_once(
        folder,
        "the teachers",
        is_kept=lambda: all((folder / name / FACTS).is_file() for name in tasks),
        train=teach,
        write=write,
    )
    found = {name: (kept_teacher(folder / name, name), folder / name) for name in tasks}
    if per_task is None:
        return found
    return {
        name: finetune(model, tasks[name], per_task, seed=seed, name=name, loss=losses.get(name))
        for name, (model, _) in found.items()
    }
