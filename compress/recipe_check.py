"""What makes a recipe impossible before any model or data is looked at."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from compress.yaml_places import Location

if TYPE_CHECKING:
    from compress.blocks import EvaluateBlock, TeacherBlock
    from compress.recipe import Recipe
    from compress.student import Student
    from compress.technique import Technique

HINTS = {
    "train": "a task with training data",
    "calibration": "a task whose data gives the ranges of activations",
    "teacher": "a teacher",
}


def problems(recipe: Recipe, have: Collection[str] | None = None) -> list[str]:
    """Return what is impossible, one sentence each, such as a step that trains after one that freezes.

    Args:
        recipe: Any recipe.
        have: The inputs that are there (train, calibration, teacher), for a recipe that is run in Python; None
            takes those that the recipe's own blocks give, and then a recipe without a model is a problem too.
    """
    steps = list(enumerate(recipe.steps))
    if have is not None:
        return [sentence for _, sentence in step_problems(steps, have)]
    given = {name for name in ("task", "teacher", "student") if getattr(recipe, name) is not None}
    found = [
        *step_problems(steps, inputs_of(given)),
        *block_problems(recipe.teacher, recipe.student, recipe.evaluate, given),
    ]
    return [sentence for _, sentence in found]


def inputs_of(blocks: Collection[str]) -> set[str]:
    """Return the inputs of steps that these blocks of a recipe give."""
    return ({"train", "calibration"} if "task" in blocks else set()) | ({"teacher"} if "teacher" in blocks else set())


def step_problems(steps: Sequence[tuple[int, Technique]], have: Collection[str]) -> Iterator[tuple[Location, str]]:
    """Find steps that lack an input, that train what can no longer be trained, or that need layers that are gone.

    Args:
        steps: Techniques with their places among the steps, counted from 0.
        have: The inputs that are there.

    Yields:
        The place in the recipe and the sentence.
    """
    frozen: tuple[int, Technique] | None = None
    made: tuple[int, Technique] | None = None
    for index, step in steps:
        where = f"step {index + 1}, {step.name}"
        for need in sorted(step.needed() - set(have)):
            yield ("steps", index), f"{where}: needs {HINTS[need]}, and there is none"
        if step.trains and frozen is not None:
            number, technique = frozen
            sentence = (
                f"{where}: trains, but step {number + 1}, {technique.name}, leaves weights that cannot be trained"
            )
            yield ("steps", index), f"{sentence}; put it before"
        if made is not None and not step.takes_any:
            number, technique = made
            sentence = f"{where}: works on transformer layers, but step {number + 1}, {technique.name}, makes"
            yield ("steps", index), f"{sentence} {technique.makes}; put it before"
        if step.makes:
            made = (index, step)
        if step.freezes and frozen is None:
            frozen = (index, step)


def block_problems(
    teacher: TeacherBlock | None, student: Student | None, evaluate: EvaluateBlock | None, given: Collection[str]
) -> Iterator[tuple[Location, str]]:
    """Find blocks that ask for another block that is not there.

    Args:
        teacher: The block, if it could be read.
        student: The block, if it could be read.
        evaluate: The block, if it could be read.
        given: Names of the blocks that the recipe has, readable or not.

    Yields:
        The place in the recipe and the sentence.
    """
    if "teacher" not in given and "student" not in given:
        yield (), "there is no model; give a teacher, a student, or both"
    if teacher is not None and teacher.finetune is not None and "task" not in given:
        yield ("teacher", "finetune"), "teacher.finetune: needs a task to fine-tune on"
    if student is not None and "teacher" not in given and student.from_ == "teacher":
        yield ("student",), "student: is made from a teacher, and there is none; give from: a model folder or hub name"
    if evaluate is not None:
        if "task" not in given:
            yield ("evaluate",), "evaluate: needs a task"
        if evaluate.against == "teacher" and "teacher" not in given:
            yield ("evaluate", "against"), "evaluate.against: there is no teacher; write 'none' or a model folder"
