"""What a recipe needs before its first step: data, the teacher (loaded or fine-tuned) and the student."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from compress.artifact.artifact import Artifact, load_model
from compress.augment.training_set import training_set, unlabelled_texts
from compress.engine.steps import problems
from compress.recipe import Recipe
from compress.technique import Inputs, TrainedTechnique
from eval.data.label_notes import label_notes
from eval.data.roles import Roles, assign_roles, read_as
from eval.errors import UserError
from eval.naming import public_name
from teachers.signals.ensemble_teacher import EnsembleTeacher
from teachers.signals.model_teacher import ModelTeacher, TeacherSource

if TYPE_CHECKING:
    from compress.recipe.blocks import TeacherBlock
    from eval.data.loading import Task
    from eval.inference import Predictor
    from eval.task import Example
    from teachers.number_format import Precision
    from teachers.signals.predictions_teacher import PredictionsTeacher
    from teachers.taskmodel import TaskModel

CALIBRATION = 512
"""Training examples that steps with ``calibration`` among their needs get."""


@dataclass(frozen=True)
class Prepared:
    """Everything a recipe needs before its first step.

    Attributes:
        roles: The data with the roles of its examples, if the recipe has a task.
        teachers: The models that teach: none, one, or the members of an ensemble.
        student: The model that the first step gets.
        inputs: Data and teacher for the steps.
        predictions: What teaches in the place of models, if it is a file.
    """

    roles: Roles | None
    teachers: tuple[TaskModel, ...]
    student: Artifact
    inputs: Inputs
    predictions: PredictionsTeacher | None = None

    @property
    def task(self) -> Task | None:
        """The data."""
        return None if self.roles is None else self.roles.task

    @property
    def reference(self) -> Predictor | None:
        """What the result is held against: the teacher, or all of them as one."""
        if self.predictions is not None:
            return self.predictions
        return EnsembleTeacher.of(self.teachers) if len(self.teachers) > 1 else next(iter(self.teachers), None)


def prepare(recipe: Recipe, *, roles: Roles | None = None) -> Prepared:
    """Read the data, load or fine-tune the teacher, build the student, and check every step against them.

    What ``augment`` adds is for the steps alone: the teacher is fine-tuned, and ranges of activations are taken, on the
    task's own examples.

    Args:
        recipe: What to do.
        roles: Its data, if that was read before.

    Raises:
        UserError: With every reason why the recipe cannot run.
    """
    prepared = assemble(recipe, read_roles(recipe) if roles is None else roles)
    found = problems(recipe.steps, prepared.student, prepared.inputs)
    if found:
        raise UserError(*found)
    return augmented(recipe, prepared)


def read_roles(recipe: Recipe) -> Roles | None:
    """Read the data of a recipe and say which examples train, choose and report.

    Raises:
        UserError: With every error of the data, or if it lacks a split that ``evaluate`` names.
    """
    task = read_task(recipe)
    return None if task is None else roles_of(recipe, task)


def read_task(recipe: Recipe) -> Task | None:
    """Read the data of a recipe; texts of an embedding task keep their labels if a teacher learns from them.

    Raises:
        UserError: With every error of the data.
    """
    refuse_several(recipe)
    if recipe.task is None:
        return None
    return recipe.task.load(recipe.seed, recipe.teacher is not None and recipe.teacher.finetune is not None)


def roles_of(recipe: Recipe, task: Task) -> Roles:
    """Say which examples train, choose and report; without an ``evaluate`` block nothing reports.

    The notes begin with what a file became that was given without the name of a split, and what is odd about labels.

    Raises:
        UserError: The data lacks a split that ``evaluate`` names.
    """
    block = recipe.evaluate
    said = [note for note in [read_as(task), *label_notes(task)] if note]
    if block is None:
        chooses = (
            f"validation {len(task.select):,} chooses"
            if len(task.select)
            else "the last epoch of every training is kept"
        )
        return Roles(task, notes=(*said, f"Without an evaluate block nothing reports, and {chooses}."))
    try:
        roles = assign_roles(task, block.split, block.select)
    except UserError as error:
        fields = [(problem.partition(":")[0], problem) for problem in error.problems]
        raise UserError(
            *(f"{recipe.where(('evaluate', field))}evaluate.{problem}" for field, problem in fields)
        ) from error
    return replace(roles, notes=(*said, *roles.notes))


def assemble(recipe: Recipe, roles: Roles | None) -> Prepared:
    """Load or fine-tune the teacher and build the student; the steps are not looked at, and nothing is augmented.

    Raises:
        UserError: If a model cannot be loaded or built.
    """
    task = None if roles is None else roles.task
    teachers, predictions = teachers_of(recipe, task), predictions_of(recipe, task)
    student = build_student(recipe, next(iter(teachers), None), task)
    train = task.train if task is not None and len(task.train) else None
    if train is not None and predictions is not None:
        train = predictions.covered(train)
    inputs = Inputs(
        train=train,
        validation=task.select if task is not None and len(task.select) else None,
        calibration=None if train is None else train.sample(CALIBRATION, recipe.seed),
        teacher=_source(teachers, _precision(recipe)) if predictions is None else predictions,
    )
    return Prepared(roles, teachers, student, inputs, predictions)


def augmented(recipe: Recipe, prepared: Prepared) -> Prepared:
    """Add what ``augment`` asks for to the examples of the steps.

    Raises:
        UserError: If a model or a file that it names is missing or unfit.
    """
    task, train, teachers = prepared.task, prepared.inputs.train, prepared.teachers
    if recipe.augment is None or task is None or train is None:
        return prepared
    mask_word = teachers[0].tokenizer.mask_token if teachers else None
    beside = [example for split in task.splits.values() for example in split]
    more = training_set(recipe.augment, train, task.spec, recipe.seed, mask_word, beside, recipe.columns)
    if prepared.predictions is not None:
        more = prepared.predictions.covered(more)
    return replace(prepared, inputs=replace(prepared.inputs, train=more))


def refuse_several(recipe: Recipe) -> None:
    """Refuse a recipe of several tasks, which gives no model to compress.

    Raises:
        UserError: If it is one.
    """
    if recipe.tasks:
        raise UserError(
            "tasks: several tasks are trained, not compressed; run 'compress teach --recipe' with this recipe"
        )


def teachers_of(recipe: Recipe, task: Task | None) -> tuple[TaskModel, ...]:
    """Load every teacher of the recipe, or fine-tune it; they are numbered if there are several."""
    if recipe.teacher is None or recipe.teacher.predictions is not None:
        return ()
    if recipe.teacher.finetune is not None and task is None:
        raise UserError("teacher.finetune: needs a task")
    block = recipe.teacher.grounded(recipe.seed, recipe.name, task)
    members = block.members(recipe.seed)
    names = [f"teacher {number + 1}" for number in range(len(members))] if len(members) > 1 else ["teacher"]
    return tuple(_teacher(block, source, seed, task, name) for (source, seed), name in zip(members, names, strict=True))


def predictions_of(recipe: Recipe, task: Task | None) -> PredictionsTeacher | None:
    """Read the file of predictions that teaches, if the recipe names one.

    Raises:
        UserError: With every reason why these are no predictions for this data.
    """
    if recipe.teacher is None or recipe.teacher.predictions is None or recipe.task is None or task is None:
        return None
    label_map = recipe.task.label_map or {}
    return recipe.teacher.predictions.teacher(task, unlabelled_of(recipe, task), recipe.columns, label_map)


def unlabelled_of(recipe: Recipe, task: Task) -> list[Example]:
    """Return the unlabelled texts that the steps will learn from."""
    return [] if recipe.augment is None else unlabelled_texts(recipe.augment, task.spec, recipe.seed, recipe.columns)


def _teacher(block: TeacherBlock, source: str, seed: int, task: Task | None, name: str) -> TaskModel:
    if block.finetune is not None and task is not None:
        return block.finetune.teach(partial(block.start, source), task, seed=seed, name=name)[0]
    spec = None if task is None else task.spec
    start = source if spec is None else block.start(source, spec, seed)
    if isinstance(start, str):
        start = load_model(start, spec, accept_incomplete=block.accept_incomplete)
    found = replace(start, name=name)
    if task is None or found.task.thresholds or not found.task.choose_thresholds:
        return found
    return Artifact.from_model(found, public_name(source)).with_thresholds(task.select)


def _source(teachers: tuple[TaskModel, ...], precision: Precision) -> TeacherSource | None:
    if len(teachers) > 1:
        return EnsembleTeacher.of(teachers, precision)
    return ModelTeacher(teachers[0], precision=precision) if teachers else None


def _precision(recipe: Recipe) -> Precision:
    """Return the number format of the teacher's outputs: that of all trainings, float32 if they differ."""
    trained = (step for step in recipe.steps if isinstance(step, TrainedTechnique))
    asked = {training.precision for step in trained for training in step.trainings()}
    return next(iter(asked), "auto") if len(asked) < 2 else "fp32"


def build_student(recipe: Recipe, teacher: TaskModel | None, task: Task | None) -> Artifact:
    """Return the model that the first step gets.

    Raises:
        UserError: If there can be no such student.
    """
    design, block = recipe.student, recipe.teacher
    origin = public_name(block.models[0]) if block is not None and block.models else "memory"
    if design is None:
        if teacher is None:
            raise UserError("the recipe names neither a teacher nor a student")
        return replace(Artifact.from_model(teacher, origin), name="student")
    source: TaskModel | None = teacher
    if source is None and design.from_ != "teacher":
        source = Artifact.from_pretrained(str(design.from_), None if task is None else task.spec)
    if source is None:
        raise UserError("student: there is no teacher to take shape or tokenizer from; give from: a model folder")
    built = design.build(Artifact.from_model(source, origin), seed=recipe.seed)
    return replace(Artifact.from_model(built), name="student")
