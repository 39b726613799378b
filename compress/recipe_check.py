"""What makes a recipe impossible before any model or data is looked at."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from compress.distill.augment.tagger import DATA
from compress.yaml_places import Location

if TYPE_CHECKING:
    from compress.blocks import EvaluateBlock, TaskBlock, TeacherBlock
    from compress.distill.augment.block import AugmentBlock
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
        *augment_problems(recipe.augment, recipe.task, given),
        *vector_problems(recipe.task, recipe.teacher, recipe.evaluate),
    ]
    return [sentence for _, sentence in found]


def inputs_of(blocks: Collection[str]) -> set[str]:
    """Return the inputs of steps that these blocks of a recipe give."""
    return ({"train", "calibration"} if "task" in blocks else set()) | ({"teacher"} if "teacher" in blocks else set())


def step_problems(steps: Sequence[tuple[int, Technique]], have: Collection[str]) -> Iterator[tuple[Location, str]]:
    """Find steps that lack an input, train what can no longer be trained, or need what an earlier step took away.

    Args:
        steps: Techniques with their places among the steps, counted from 0.
        have: The inputs that are there.

    Yields:
        The place in the recipe and the sentence.
    """
    frozen: tuple[int, Technique] | None = None
    made: tuple[int, Technique] | None = None
    last: tuple[int, Technique] | None = None
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
        elif last is not None:
            number, technique = last
            sentence = f"{where}: comes after step {number + 1}, {technique.name}, which must be the last step"
            yield ("steps", index), f"{sentence}; put it before"
        for number, before in steps:
            if number < index and before.name in step.not_after:
                sentence = f"{where}: cannot follow step {number + 1}, {before.name}: {step.not_after[before.name]}"
                yield ("steps", index), sentence
        if made is not None and not step.takes_any:
            number, technique = made
            sentence = f"{where}: works on transformer layers, but step {number + 1}, {technique.name}, makes"
            yield ("steps", index), f"{sentence} {technique.makes}; put it before"
        if step.makes:
            made = (index, step)
        if step.freezes and frozen is None:
            frozen = (index, step)
        if step.last and last is None:
            last = (index, step)


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
    if teacher is not None and teacher.shape is not None and teacher.finetune is None:
        yield ("teacher", "shape"), "teacher.shape: new weights know nothing yet; add finetune, which trains them"
    if student is not None and "teacher" not in given and student.from_ == "teacher":
        yield ("student",), "student: is made from a teacher, and there is none; give from: a model folder or hub name"
    if evaluate is not None:
        if "task" not in given:
            yield ("evaluate",), "evaluate: needs a task"
        if evaluate.against == "teacher" and "teacher" not in given:
            yield ("evaluate", "against"), "evaluate.against: there is no teacher; write 'none' or a model folder"


def vector_problems(
    task: TaskBlock | None, teacher: TeacherBlock | None, evaluate: EvaluateBlock | None
) -> Iterator[tuple[Location, str]]:
    """Find what would train vectors on labels, which say nothing of a single text.

    Args:
        task: The block, if it could be read.
        teacher: The block, if it could be read.
        evaluate: The block, if it could be read.

    Yields:
        The place in the recipe and the sentence.
    """
    if task is None or task.kind != "embedding":
        return
    if teacher is not None and teacher.finetune is not None:
        sentence = "teacher.finetune: an embedding task has no labels to learn from; name a sentence embedder as model"
        yield ("teacher", "finetune"), sentence
    if evaluate is not None and evaluate.baseline:
        sentence = "evaluate.baseline: an embedding task has no labels to learn from without a teacher; leave it out"
        yield ("evaluate", "baseline"), sentence


def augment_problems(
    augment: AugmentBlock | None, task: TaskBlock | None, given: Collection[str]
) -> Iterator[tuple[Location, str]]:
    """Find what cannot be added to the examples of a task.

    Args:
        augment: The block, if it could be read.
        task: The block, if it could be read.
        given: Names of the blocks that the recipe has, readable or not.

    Yields:
        The place in the recipe and the sentence.
    """
    if augment is None:
        return
    if "task" not in given:
        yield ("augment",), "augment: needs a task whose examples it adds to"
    if "teacher" not in given and not augment.keeps_labels:
        yield ("augment",), "augment: adds texts without labels, which a teacher must answer, and there is none"
    kind = None if task is None else task.kind
    if kind == "qa":
        yield ("augment",), "augment: qa is not augmented; its answers are places in the context, which would move"
    elif kind in ("masked-lm", "embedding"):
        yield ("augment",), f"augment: {kind} learns from plain text; put more text into its data instead"
    elif kind == "tagging" and augment.unlabelled is not None:
        yield ("augment", "unlabelled"), "augment.unlabelled: tagging learns from words with tags; drop unlabelled"
    if kind != "tagging" and kind is not None and augment.rule == "bilstm" and augment.tagger == DATA and augment.pos:
        sentence = f"augment.tagger: only tagging data has tags, and the task is {kind}; name a spaCy pipeline"
        yield ("augment", "tagger"), sentence
