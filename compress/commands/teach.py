"""``compress teach``: fine-tune a teacher, or train one from its shape."""

from __future__ import annotations

import logging
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from compress.commands.optimize import Label, Text
from compress.commands.run import Overrides, Track, tracking
from compress.terminal.next_command import say_next, set_again
from compress.terminal.options import block_of
from compress.terminal.output import table
from eval.errors import UserError
from eval.naming import public_name
from teachers.training.processes import is_first

if TYPE_CHECKING:
    from compress.recipe import Recipe
    from compress.recipe.blocks import TeacherBlock
    from compress.recipe.task_block import TaskBlock
    from compress.student.student import Student
    from eval.data.loading import Task
    from teachers.taskmodel import TaskModel

logger = logging.getLogger("compress.commands.teach")


def teach(
    recipe: Annotated[
        Path | None, typer.Option(help="A YAML file with a teacher to pretrain on text, or to fine-tune on a task.")
    ] = None,
    base: Annotated[str | None, typer.Option(help="Folder or hub name of the model to start from.")] = None,
    shape: Annotated[
        str | None,
        typer.Option(help="Start from random weights in this shape, such as 'layers: 4, hidden_size: 128, heads: 2'."),
    ] = None,
    task: Annotated[str | None, typer.Option(help="Kind of task; masked-lm learns from unlabelled text.")] = None,
    data: Annotated[
        str | None, typer.Option(help="Folder or hub name of the data, or one file, which is learned from.")
    ] = None,
    text: Text = None,
    label: Label = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the teacher, beside the copy in COMPRESS_HOME.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seeds head, order and dropout.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the data.")] = None,
    max_steps: Annotated[int | None, typer.Option(help="Most optimizer steps.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Examples of an optimizer step.")] = None,
    warmup_steps: Annotated[
        float | None,
        typer.Option(
            "--warmup-steps", "--warmup", help="Steps in which the rate rises; below 1, their share of all steps."
        ),
    ] = None,
    patience: Annotated[int | None, typer.Option(help="Epochs without a better score before it stops.")] = None,
    overrides: Overrides = None,
    track: Track = None,
) -> None:
    """Pretrain a teacher on unlabelled text, or fine-tune one on a task, or both; the same call later finds it again.

    Where a recipe names several teachers, each is kept in a numbered folder of its own. Several tasks are learned
    together by one encoder; each task's model is kept in a folder of the task's name. With a sweep, a table shows every
    setting, and the best is the teacher.
    """
    flags = {"base": base, "task": task, "data": data, "text": text or None, "label": label}
    training = {
        "epochs": epochs,
        "max_steps": max_steps,
        "learning_rate": learning_rate,
        "batch_size": batch_size,
        "warmup_steps": warmup_steps,
        "patience": patience,
    }
    given = {key: value for key, value in training.items() if value is not None}
    overrides = [*(overrides or ()), *tracking(track)]
    if recipe is not None:
        overrides = [*_as_overrides(given, seed), *overrides]
        wanted = _from_file(recipe, flags, seed, overrides)
    else:
        wanted = _from_flags(flags, given, seed, overrides)
    if wanted.teacher is None or (wanted.teacher.finetune is None and wanted.teacher.pretrain is None):
        raise UserError(f"{recipe}: has no teacher with a finetune or a pretrain block; there is nothing to teach")
    if wanted.teacher.finetune is not None and not (wanted.task or wanted.tasks):
        raise UserError(f"{recipe}: teacher.finetune needs a task")
    drawn = None if shape is None else _shape_of(shape, wanted.teacher)
    if is_first() and out is not None:
        from eval.files.writing import refuse_unwritable

        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UserError(f"{out}: is there already and not empty; choose another --out or remove it")
        refuse_unwritable(out)

    from compress.engine.tracked_run import tracked
    from eval.files.home import home

    with tracked(wanted, home()):
        kept = _teach(wanted, wanted.teacher, drawn, out)
    if is_first() and len(kept) == 1:
        if recipe is not None and wanted.steps:
            shaped = [] if shape is None else [f"teacher.shape={{{shape}}}"]
            say_next("compress", "run", recipe, *set_again([*overrides, *shaped]))
        elif wanted.task is not None and (words := _words_for(wanted.task)):
            say_next("compress", "init", *words, "--teacher", kept[0])


def _words_for(task: TaskBlock) -> list[str]:
    """Return the words that say a task to ``compress init``; none if its options cannot."""
    from eval.data.columns import column_words
    from eval.kinds.kind_registry import kind_of

    alone = set(task.files or {}) == {"train"} and task.data is None
    place = (task.files or {})["train"] if alone else None if task.files else task.data
    columns = column_words(kind_of(task.kind), task.columns or {})
    if place is None or columns is None:
        return []
    return ["--task", task.kind, "--data", place, *columns]


def _shape_of(text: str, teacher: TeacherBlock) -> Student:
    """Return the shape that ``--shape`` says.

    Raises:
        UserError: With every error of it, or if nothing would be fine-tuned in it.
    """
    from compress.student.student import Student

    found = block_of(Student, text, "--shape", {"init": "random"})
    if teacher.finetune is None:
        raise UserError("--shape: is of what is fine-tuned; of a network to pretrain, teacher.pretrain says it")
    return found


def _teach(wanted: Recipe, block: TeacherBlock, shape: Student | None, out: Path | None) -> list[Path]:
    """Make every teacher of a block; return the folders of those that know one task."""
    kept: list[Path] = []
    block = block.grounded(wanted.seed, wanted.name, _task_of(wanted) if block.new is not None else None)
    if block.finetune is None or not (wanted.task or wanted.tasks):
        _copy(Path(str(block.model)), out)
        return kept
    if shape is not None:
        block = block.model_copy(update={"shape": shape})
    wanted = wanted.model_copy(update={"teacher": block})
    members = block.members(wanted.seed)
    for number, (source, used_seed) in enumerate(members, start=1):
        place = out if out is None or len(members) == 1 else out / str(number)
        if wanted.tasks:
            _teach_several(wanted, source, used_seed, place)
        else:
            kept.append(_teach_one(wanted, source, used_seed, place))
    return kept


def _task_of(recipe: Recipe) -> Task | None:
    """Return the task of a recipe as it is learned, without the examples that choose or report."""
    from compress.engine.preparation import read_roles

    roles = read_roles(recipe)
    return None if roles is None else roles.task


def _teach_one(recipe: Recipe, source: str, seed: int, place: Path | None) -> Path:
    from compress.engine.preparation import read_roles

    roles, teacher = read_roles(recipe), recipe.teacher
    if roles is None or teacher is None or teacher.finetune is None:
        raise TypeError("a recipe without a task or a finetune block came past the check for them")
    name = place.name if place else "teacher"
    start = partial(teacher.start, source)
    trained, folder, found = teacher.finetune.teach(start, roles.task, seed=seed, name=name)
    for note in roles.notes if is_first() else ():
        logger.info("data: %s", note)
    if found is not None and is_first():
        from teachers.finetuning.sweep import OPTIMISTIC

        table(*found.rows(), title=f"{source}: {found.metric} on the examples that choose")
        typer.echo(OPTIMISTIC)
    _keep(trained, folder, source, place)
    return place or folder


def _teach_several(recipe: Recipe, source: str, seed: int, place: Path | None) -> None:
    from compress.engine.several_tasks import teach_together

    for name, (teacher, folder) in teach_together(recipe, source, seed).items():
        _keep(teacher, folder, source, None if place is None else place / name)


def _keep(teacher: TaskModel, folder: Path, source: str, place: Path | None) -> None:
    """Save a teacher where the user asked for it, its adapter with it, and say where it lies."""
    from compress.artifact.artifact import Artifact
    from teachers.finetuning.adapter_folder import FOLDER as ADAPTER

    if not is_first():
        return
    if place is not None:
        Artifact.from_model(teacher, origin=public_name(source)).save(place)
        shutil.copy(folder / "teacher.json", place)
        if (folder / ADAPTER).is_dir():
            shutil.copytree(folder / ADAPTER, place / ADAPTER)
    typer.echo(f"teacher: {place or folder}")


def _copy(folder: Path, out: Path | None) -> None:
    """Copy a network to where it is wanted, and say where it lies."""
    from eval.files.writing import atomic_folder

    if not is_first():
        return
    if out is not None:
        with atomic_folder(out, "the teacher") as beside:
            shutil.copytree(folder, beside, dirs_exist_ok=True)
    typer.echo(f"teacher: {out or folder}")


def _as_overrides(training: dict[str, Any], seed: int | None) -> list[str]:
    """Return what ``--set`` is told for options that a recipe has fields for."""
    changes = [f"teacher.finetune.{key}={value}" for key, value in training.items()]
    return changes if seed is None else [*changes, f"seed={seed}"]


def _from_file(recipe: Path, flags: dict[str, Any], seed: int | None, overrides: list[str]) -> Recipe:
    from compress.recipe import read_recipe

    names = [f"--{name}" for name, value in flags.items() if value is not None]
    if names:
        raise UserError(f"{', '.join(names)}: the recipe says this already; change it with --set")
    wanted = read_recipe(recipe, overrides)
    if seed is not None and wanted.teacher is not None and wanted.teacher.finetune is not None:
        own = wanted.teacher.finetune.seed
        if own is not None:
            raise UserError(
                f"--seed: the recipe says this already (teacher.finetune.seed: {own}); change it with "
                f"--set teacher.finetune.seed={seed}"
            )
    return wanted


def _from_flags(flags: dict[str, Any], training: dict[str, Any], seed: int | None, overrides: list[str]) -> Recipe:
    from compress.recipe import recipe_from_plain
    from compress.recipe.blocks import EvaluateBlock
    from compress.recipe.task_block import TaskBlock
    from eval.data.columns import named_columns
    from eval.kinds.kind_registry import kind_names, kind_of

    missing = [f"--{name}" for name in ("base", "task", "data") if flags[name] is None]
    if missing:
        raise UserError(f"{', '.join(missing)} must be given, or --recipe with a file that says it")
    known = flags["task"] in kind_names()  # else the recipe's own check says so
    columns = named_columns(kind_of(flags["task"]), flags["text"], flags["label"]) if known else {}
    values = {
        "name": "teacher",
        "task": {"kind": flags["task"], **TaskBlock.place_of(flags["data"]), "columns": columns or None},
        "teacher": {"model": flags["base"], "finetune": training},
    }
    wanted = recipe_from_plain(values if seed is None else values | {"seed": seed}, "arguments", overrides)
    if wanted.task is None or not kind_of(wanted.task.kind).scored:
        return wanted
    # What is trained is measured some day, so the split that reports chooses nothing.
    return wanted.model_copy(update={"evaluate": EvaluateBlock(against="none")})
