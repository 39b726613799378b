"""What a recipe would start from, without training anything."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from eval.errors import UserError
from eval.task import TaskSpec

if TYPE_CHECKING:
    from compress.engine.preparation import Prepared
    from compress.recipe import Recipe
    from compress.recipe.blocks import TeacherBlock
    from eval.data.loading import Task
    from eval.data.roles import Roles


@dataclass(frozen=True)
class Preview:
    """What a recipe would start from, as far as it could be loaded.

    Attributes:
        roles: The data with the roles of its examples; None without a task, or if it cannot be read.
        prepared: Models and inputs, with what stands for a teacher that is still to be trained; None if they cannot be
            loaded.
        impossible: Steps that cannot run on these models, counted from 0.
        problems: Every reason why the recipe cannot run, with its line if the recipe came from a file.
    """

    roles: Roles | None
    prepared: Prepared | None
    impossible: frozenset[int]
    problems: tuple[str, ...]

    @property
    def task(self) -> Task | None:
        """The data."""
        return None if self.roles is None else self.roles.task


def preview(recipe: Recipe) -> Prepared:
    """Read the data, load the models, build the student and check every step, but train and augment nothing.

    A teacher that would be fine-tuned is represented by its base with a new head, once for every seed, and one that is
    still to be made by a new network whose tokenizer is learned from the beginning of its text: shapes are the same,
    and costs about.

    Raises:
        UserError: With every reason why the recipe cannot run, those of data and of models together.
    """
    found = look(recipe)
    if found.problems or found.prepared is None:
        raise UserError(*found.problems)
    return found.prepared


def look(recipe: Recipe) -> Preview:
    """Do what ``preview`` does, and return its problems beside whatever could be loaded."""
    from compress.engine.preparation import assemble, read_task
    from compress.engine.steps import placed_problems
    from eval.data.roles import read_as

    roles, prepared = None, None
    problems: list[str] = []
    impossible: frozenset[int] = frozenset()
    with tempfile.TemporaryDirectory() as scratch:
        try:
            block = _untrained(recipe, Path(scratch))
        except UserError as error:
            return Preview(None, None, impossible, error.problems)
        untrained = recipe.model_copy(update={"teacher": block})
        try:
            task = read_task(recipe)
            roles, wrong = _roles(recipe, task)
            problems += wrong
            if block is not None and block.new is not None and task is not None and roles is not None:
                block.new.save(Path(scratch), roles.task.train, task.spec, recipe.seed, untrained=True)
                stands = _without_finetuning(_standing_in(block, scratch, "new"), recipe.seed)
                untrained = recipe.model_copy(update={"teacher": stands})
            prepared = assemble(untrained, roles)
        except UserError as error:
            problems += [*error.problems, *_unreadable_models(untrained)]
    if prepared is not None:
        steps = placed_problems(recipe.steps, prepared.student, prepared.inputs)
        impossible = frozenset(index for index, _ in steps)
        problems += [f"{recipe.where(('steps', index))}{sentence}" for index, sentence in steps]
        problems += _training_task_problems(recipe, prepared)
    if problems and roles is not None and not len(roles.task.train) and (said := read_as(roles.task)):
        problems.append(f"{recipe.where(('task', 'data'))}task.data: {said}")
    return Preview(roles, prepared, impossible, tuple(problems))


def _roles(recipe: Recipe, task: Task | None) -> tuple[Roles | None, Sequence[str]]:
    """Return the roles of the examples, and why they cannot be those that the recipe names."""
    from compress.engine.preparation import roles_of
    from eval.data.roles import Roles

    if task is None:
        return None, ()
    try:
        return roles_of(recipe, task), ()
    except UserError as error:
        return Roles(task), error.problems


def _untrained(recipe: Recipe, scratch: Path) -> TeacherBlock | None:
    """Return the teacher's block with what stands for a teacher that is still to be trained."""
    block = recipe.teacher
    if block is None:
        return None
    if block.pretrain is not None:
        from teachers.pretraining.network import save_untrained

        save_untrained(block.pretrain, scratch, recipe.seed)
        block = _standing_in(block, str(scratch), "pretrain")
    return _without_finetuning(block, recipe.seed) if block.new is None else block


def _without_finetuning(block: TeacherBlock, seed: int) -> TeacherBlock:
    """Return the block with what would be fine-tuned as the teachers, once for every seed."""
    if block.finetune is None:
        return block
    models = tuple(model for model, _ in block.members(seed))
    return block.model_copy(update={"model": models, "finetune": None})


def _standing_in(block: TeacherBlock, folder: str, place: str) -> TeacherBlock:
    """Return a block with a model folder in the place of what is still to be made."""
    return block.model_copy(update={"model": folder, place: None})


def _training_task_problems(recipe: Recipe, prepared: Prepared) -> list[str]:
    """Return why the teacher cannot learn its task, and why its examples cannot be augmented."""
    task = prepared.task
    problems: list[str] = []
    for refuse in (_refuse_training_task, _refuse_augmentation):
        try:
            if task is not None:
                refuse(recipe, task, prepared)
        except UserError as error:
            problems += error.problems
    return problems


def _refuse_training_task(recipe: Recipe, task: Task, prepared: Prepared) -> None:
    """Refuse examples from which the teacher's loss learns nothing, and a head that cannot answer them."""
    from teachers.losses.task_loss import TaskLoss

    block = recipe.teacher.finetune if recipe.teacher is not None else None
    if block is None:
        return
    if block.head is not None and (problems := block.head.unanswerable(prepared.teachers[0], task.spec)):
        where = recipe.where(("teacher", "finetune", "head"))
        raise UserError(*(f"{where}teacher.finetune.{problem}" for problem in problems))
    if not len(task.train):
        raise UserError(
            f"{recipe.where(('teacher', 'finetune'))}teacher.finetune: {task.source or 'the data'} has no train split "
            "to fine-tune on"
        )
    (TaskLoss() if block.loss is None else block.loss.objective).select(task.spec, task.train)


def _refuse_augmentation(recipe: Recipe, task: Task, prepared: Prepared) -> None:
    from compress.augment.training_set import expected, training_set

    if recipe.augment is None:
        return
    expected(recipe.augment, task.train, task.spec, recipe.columns)
    if prepared.predictions is not None and prepared.inputs.train is not None:  # without a rule nothing is drawn
        beside = [example for split in task.splits.values() for example in split]
        train, columns = prepared.inputs.train, recipe.columns
        more = training_set(recipe.augment, train, task.spec, recipe.seed, beside=beside, columns=columns)
        prepared.predictions.covered(more)


def _unreadable_models(recipe: Recipe) -> list[str]:
    """Return what is wrong with the models by themselves, which wrong data would hide; no head is asked for."""
    from compress.artifact.artifact import load_model
    from compress.artifact.store import is_artifact
    from eval.kinds.kind_registry import kind_of

    found: list[str] = []
    if recipe.teacher is None:
        return found
    kind = recipe.task.kind if recipe.task is not None and kind_of(recipe.task.kind).writes else "embedding"
    for source in dict.fromkeys(recipe.teacher.models):
        try:
            task = None if is_artifact(source) else TaskSpec(kind=kind)
            load_model(source, task, accept_incomplete=recipe.teacher.accept_incomplete)
        except UserError as error:
            found += error.problems
    return found
