"""A recipe of several tasks: one encoder is trained on all, or an adapter for each; a model a task comes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compress.artifact.artifact import load_model
from eval.errors import UserError
from teachers.finetuning.finetune import finetune
from teachers.finetuning.multitask import finetune_together, share_encoders
from teachers.losses.task_loss import TaskLoss

if TYPE_CHECKING:
    from compress.recipe import Recipe
    from eval.data.loading import Task
    from teachers.losses.catalogue import NamedLoss
    from teachers.taskmodel import TaskModel


def teach_together(recipe: Recipe, source: str, seed: int) -> dict[str, tuple[TaskModel, Path]]:
    """Train one encoder on all tasks of a recipe, or an adapter a task over it, or find what an earlier call made.

    Args:
        recipe: Has ``tasks`` and a teacher with a ``finetune`` block.
        source: The model to start from, one of the teacher's.
        seed: Seeds heads, order and dropout.

    Returns:
        For each task its teacher and the folder of it.

    Raises:
        UserError: If data, models or settings are unusable.
        DivergedError: If training fails.
    """
    block = recipe.teacher.finetune if recipe.teacher is not None else None
    if recipe.teacher is None or block is None:
        raise UserError("tasks: need a teacher with a finetune block, which is trained on all of them")
    tasks = load_tasks(recipe)
    models = starts(recipe, tasks, source, seed)
    if block.adapter is not None:
        how: dict[str, Any] = {"seed": seed, "adapter": block.adapter}
        losses = losses_of(recipe)
        return {
            name: finetune(model, tasks[name], block.training, name=name, loss=losses.get(name), **how)
            for name, model in models.items()
        }
    return finetune_together(
        models, tasks, block.training, losses=losses_of(recipe), per_task=block.per_task, seed=seed
    )


def preview_together(recipe: Recipe) -> tuple[dict[str, Task], dict[str, TaskModel]]:
    """Read all data and load the models that training would start from, but train nothing.

    Raises:
        UserError: With every reason why the recipe cannot be trained.
    """
    if recipe.teacher is None:
        raise UserError("tasks: need a teacher with a finetune block, which is trained on all of them")
    tasks, losses = load_tasks(recipe), losses_of(recipe)
    problems: list[str] = []
    for name, task in tasks.items():
        try:
            losses.get(name, TaskLoss()).select(task.spec, task.train)
        except UserError as error:
            problems += [f"tasks.{name}: {problem}" for problem in error.problems]
    if problems:
        raise UserError(*problems)
    models = starts(recipe, tasks, recipe.teacher.models[0], recipe.seed)
    if recipe.teacher.finetune is None or recipe.teacher.finetune.adapter is None:
        share_encoders(models)
    return tasks, models


def load_tasks(recipe: Recipe) -> dict[str, Task]:
    """Read the data of every task.

    Raises:
        UserError: With every error in the data of all of them.
    """
    found: dict[str, Task] = {}
    problems: list[str] = []
    for name, block in (recipe.tasks or {}).items():
        try:
            found[name] = block.load(recipe.seed, keep_labels=True)
        except UserError as error:
            problems += [f"tasks.{name}: {problem}" for problem in error.problems]
    if problems:
        raise UserError(*problems)
    return found


def starts(recipe: Recipe, tasks: Mapping[str, Task], source: str, seed: int) -> dict[str, TaskModel]:
    """Return for each task a network with its own head, from the same base.

    Raises:
        UserError: With every reason why there can be no such networks.
    """
    models: dict[str, TaskModel] = {}
    problems: list[str] = []
    for name, block in (recipe.tasks or {}).items():
        spec = tasks[name].spec
        try:
            start = recipe.teacher.start(source, spec, seed, block.head) if recipe.teacher is not None else source
            model = load_model(start, spec, seed) if isinstance(start, str) else start
            models[name] = replace(model, name=name)
        except UserError as error:
            problems += [f"tasks.{name}: {problem}" for problem in error.problems]
    if problems:
        raise UserError(*problems)
    return models


def losses_of(recipe: Recipe) -> dict[str, NamedLoss]:
    """Return the losses that tasks name."""
    return {name: block.loss.objective for name, block in (recipe.tasks or {}).items() if block.loss is not None}
