"""What a recipe would start from, without training anything."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from eval.errors import UserError
from eval.task import TaskSpec

if TYPE_CHECKING:
    from compress.blocks import TeacherBlock
    from compress.preparation import Prepared
    from compress.recipe import Recipe
    from eval.task import Task
    from teachers.taskmodel import TaskModel


def preview(recipe: Recipe) -> Prepared:
    """Read the data, load the models, build the student and check every step, but train and augment nothing.

    A teacher that would be fine-tuned is represented by its base with a new head, once for every seed, and one that
    would be pretrained by a new network that knows no word: shapes and costs are the same.

    Raises:
        UserError: With every reason why the recipe cannot run, those of data and of models together.
    """
    from compress.distill.augment.training_set import expected
    from compress.preparation import prepare

    learns = recipe.teacher is not None and recipe.teacher.finetune is not None
    with tempfile.TemporaryDirectory() as scratch:
        untrained = recipe.model_copy(update={"augment": None, "teacher": _untrained(recipe, Path(scratch))})
        try:
            prepared = prepare(untrained, keep_labels=learns)
        except UserError as error:
            raise UserError(*error.problems, *_unreadable_models(untrained)) from error
    if learns and prepared.task is not None:
        _refuse_lesson(recipe, prepared.task, prepared.teachers[0])
    if recipe.augment is not None and prepared.task is not None:
        expected(recipe.augment, prepared.task.train, prepared.task.spec)
    return prepared


def _untrained(recipe: Recipe, scratch: Path) -> TeacherBlock | None:
    """Return the teacher's block with what stands for a teacher that is still to be trained."""
    block = recipe.teacher
    if block is None:
        return None
    if block.pretrain is not None:
        from teachers.pretraining.network import save_untrained

        save_untrained(block.pretrain, scratch, recipe.seed)
        block = block.model_copy(update={"model": str(scratch), "pretrain": None})
    if block.finetune is not None:
        models = tuple(model for model, _ in block.members(recipe.seed))
        block = block.model_copy(update={"model": models, "finetune": None})
    return block


def _refuse_lesson(recipe: Recipe, task: Task, base: TaskModel) -> None:
    """Refuse examples from which the teacher's loss learns nothing, and a head that cannot answer them."""
    from compress.architectures.answer_network import unanswerable
    from teachers.objective import TaskLoss

    block = recipe.teacher.finetune if recipe.teacher is not None else None
    if block is not None and block.head is not None and (problems := unanswerable(base, task.spec)):
        raise UserError(*problems)
    if block is not None and len(task.train):
        (TaskLoss() if block.loss is None else block.loss.objective).select(task.spec, task.train)


def _unreadable_models(recipe: Recipe) -> list[str]:
    """Return what is wrong with the models by themselves, which wrong data would hide."""
    from compress.store import is_artifact, load_model

    found: list[str] = []
    if recipe.teacher is None:
        return found
    for source in dict.fromkeys(recipe.teacher.models):
        try:
            task = None if is_artifact(source) else TaskSpec(kind="masked-lm")
            load_model(source, task, accept_incomplete=recipe.teacher.accept_incomplete)
        except UserError as error:
            found += error.problems
    return found
