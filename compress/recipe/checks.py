"""What makes a recipe impossible before any model or data is looked at."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from compress.augment.tagger import DATA
from compress.reading.yaml_places import Location
from compress.recipe.step_order import step_problems
from eval.kinds.kind_registry import kind_of
from eval.ranking.neighbour_graph import lacking

if TYPE_CHECKING:
    from compress.augment.block import AugmentBlock
    from compress.recipe.blocks import EvaluateBlock, SharedTaskBlock, TaskBlock, TeacherBlock
    from compress.recipe.schema import Recipe
    from compress.student.student import Student
    from compress.technique import Technique
    from eval.ranking.vector_index import IndexForm


def problems(recipe: Recipe, have: Collection[str] | None = None) -> list[str]:
    """Return what is impossible, one sentence each, such as a step that trains after one that freezes.

    Args:
        recipe: Any recipe.
        have: The inputs that are there (train, calibration, teacher), for a recipe that is run in Python; None
            takes those that the recipe's own blocks give, and then a recipe without a model is a problem too.
    """
    if have is not None:
        return [sentence for _, sentence in step_problems(list(enumerate(recipe.steps)), have)]
    return [sentence for _, sentence in recipe_problems(recipe, parts_given(dict(recipe)))]


def recipe_problems(
    recipe: Recipe, given: Collection[str], steps: Sequence[tuple[int, Technique]] | None = None
) -> Iterator[tuple[Location, str]]:
    """Find what is impossible.

    Args:
        recipe: A recipe, or what of it could be read.
        given: Names of the parts that the whole recipe has, readable or not.
        steps: The recipe's steps with their places in the whole recipe.

    Yields:
        The place in the recipe and the sentence.
    """
    if "ablate" in given and "evaluate" not in given:
        yield ("ablate",), "ablate: needs evaluate, which measures what each step contributed"
    yield from step_problems(list(enumerate(recipe.steps)) if steps is None else steps, inputs_of(given))
    yield from block_problems(recipe.teacher, recipe.student, recipe.evaluate, given)
    yield from shared_problems(recipe.teacher, given)
    yield from augment_problems(recipe.augment, recipe.task, given)
    yield from evaluate_problems(recipe.task, recipe.evaluate)
    adapting = _adapting(recipe)
    yield from finetune_problems((recipe.task, *adapting.values()), recipe.teacher)
    for name in (name for name, task in adapting.items() if task.head is not None):
        sentence = "is no standard head, and an adapter needs one; leave out one of the two"
        yield ("tasks", name, "head"), f"tasks.{name}.head: {sentence}"
    yield from predictions_problems(recipe, given)


def _adapting(recipe: Recipe) -> Mapping[str, SharedTaskBlock]:
    """Return the tasks of several that are each fine-tuned by themselves, with an adapter."""
    finetune = None if recipe.teacher is None else recipe.teacher.finetune
    return recipe.tasks or {} if finetune is not None and finetune.adapter is not None else {}


PARTS = ("task", "tasks", "teacher", "student", "augment", "steps", "export", "evaluate", "ablate")
"""The parts of a recipe that others depend on."""
TAUGHT = ("task", "student", "augment", "steps", "export", "evaluate", "ablate")
"""Those that have no place beside several tasks."""


def parts_given(recipe: Mapping[str, Any]) -> set[str]:
    """Return the parts that a recipe has, readable or not, by its fields or plain values."""
    return {name for name in PARTS if recipe.get(name) not in (None, False, (), [])}


def inputs_of(blocks: Collection[str]) -> set[str]:
    """Return the inputs of steps that these blocks of a recipe give."""
    return ({"train", "calibration"} if "task" in blocks else set()) | ({"teacher"} if "teacher" in blocks else set())


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
    untold = not {"task", "tasks"} & set(given)
    if teacher is not None and teacher.finetune is not None and untold:
        yield ("teacher", "finetune"), "teacher.finetune: needs a task to fine-tune on"
    if teacher is not None and teacher.shape is not None and teacher.finetune is None:
        yield ("teacher", "shape"), "teacher.shape: new weights know nothing yet; add finetune, which trains them"
    if student is not None and "teacher" not in given and student.from_ == "teacher":
        yield ("student",), "student: is made from a teacher, and there is none; give from: a model folder or hub name"
    if evaluate is not None:
        if untold:
            yield ("evaluate",), "evaluate: needs a task"
        if evaluate.against == "teacher" and "teacher" not in given:
            yield ("evaluate", "against"), "evaluate.against: there is no teacher; write 'none' or a model folder"
        for name in ("stress", "attributions") if evaluate.against == "none" else ():
            if getattr(evaluate, name):
                sentence = f"evaluate.{name}: compares the result with a reference; name one as evaluate.against"
                yield ("evaluate", name), sentence


def shared_problems(teacher: TeacherBlock | None, given: Collection[str]) -> Iterator[tuple[Location, str]]:
    """Find what does not go with several tasks, or only with them.

    Args:
        teacher: The block, if it could be read.
        given: Names of the parts that the recipe has, readable or not.

    Yields:
        The place in the recipe and the sentence.
    """
    finetune = None if teacher is None else teacher.finetune
    if "tasks" not in given:
        if finetune is not None and finetune.per_task is not None:
            sentence = "teacher.finetune.per_task: is for several tasks; name them under tasks, or leave it out"
            yield ("teacher", "finetune", "per_task"), sentence
        return
    for name in TAUGHT:
        if name in given:
            sentence = (
                "several tasks are only trained, by 'compress teach'; compress the models that come out one by one"
            )
            yield (name,), f"{name}: cannot stand beside tasks: {sentence}"
    if "teacher" not in given or (teacher is not None and finetune is None):
        yield ("tasks",), "tasks: need a teacher with a finetune block, which is trained on all of them"
    if finetune is not None and finetune.adapter is not None:
        for field in ("per_task", "in_domain", "sweep"):
            if getattr(finetune, field) is not None:
                sentence = "each task learns its own adapter over the one base; leave it out"
                yield ("teacher", "finetune", field), f"teacher.finetune.{field}: {sentence}"
    for field in ("loss", "head"):
        if finetune is not None and getattr(finetune, field) is not None:
            sentence = f"teacher.finetune.{field}: with several tasks each says its own, as tasks.NAME.{field}"
            yield ("teacher", "finetune", field), sentence


def evaluate_problems(task: TaskBlock | None, evaluate: EvaluateBlock | None) -> Iterator[tuple[Location, str]]:
    """Find what cannot be measured on a task: an answer that no example holds, a baseline without labels.

    Args:
        task: The block, if it could be read.
        evaluate: The block, if it could be read.

    Yields:
        The place in the recipe and the sentence.
    """
    if task is None or evaluate is None:
        return
    if kind_of(task.kind).masks:
        sentence = "evaluate: a text without labels has no answers to score; leave the block out"
        yield ("evaluate",), sentence + ", and evaluate what is fine-tuned from the result"
    yield from ((("evaluate", "index"), f"evaluate.index: {one}") for one in index_problems(task.kind, evaluate.index))
    if kind_of(task.kind).vectors and evaluate.baseline:
        sentence = "evaluate.baseline: an embedding task has no labels to learn from without a teacher; leave it out"
        yield ("evaluate", "baseline"), sentence


def index_problems(kind: str, forms: Sequence[IndexForm]) -> Iterator[str]:
    """Find forms of an index that a kind of task has no use for, and those that were given twice; a sentence each."""
    titles = [form.title for form in forms]
    if titles and not (kind_of(kind).searches and kind_of(kind).vectors):
        yield f"a {kind} task searches no vectors; leave it out"
    if any(form.approximate for form in forms) and (problem := lacking()):
        yield problem
    if twice := sorted({title for title in titles if titles.count(title) > 1}):
        yield f"{', '.join(twice)}: stands there twice; say it once"


def finetune_problems(
    tasks: Iterable[TaskBlock | None], teacher: TeacherBlock | None
) -> Iterator[tuple[Location, str]]:
    """Find strategies of fine-tuning that do not fit the task, or one of several, or each other.

    Args:
        tasks: The blocks of those that could be read.
        teacher: The block, if it could be read.

    Yields:
        The place in the recipe and the sentence.
    """
    if teacher is None or teacher.finetune is None:
        return
    for field, why in dict.fromkeys(clash for task in tasks if task for clash in teacher.finetune.clashes(task.kind)):
        yield ("teacher", "finetune", field), f"teacher.finetune.{field}: {why}"


def predictions_problems(recipe: Recipe, given: Collection[str]) -> Iterator[tuple[Location, str]]:
    """Find what a file of predictions cannot give: a network, and predictions of texts that are made later.

    Args:
        recipe: A recipe, or what of it could be read.
        given: Names of the blocks that the recipe has, readable or not.

    Yields:
        The place in the recipe and the sentence.
    """
    if recipe.teacher is None or recipe.teacher.predictions is None:
        return
    if "task" not in given:
        yield ("teacher", "predictions"), "teacher.predictions: need a task whose examples they answer"
    if "student" not in given or (recipe.student is not None and recipe.student.from_ == "teacher"):
        sentence = (
            "student: a file of predictions has no network to make it from; give from: a model folder or hub name"
        )
        yield ("student",), sentence
    if recipe.augment is not None and recipe.augment.rule is not None:
        sentence = "augment.rule: makes new texts, which no file of predictions answers; name a model as the teacher"
        yield ("augment", "rule"), f"{sentence}, or leave the rule out"


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
    if not {"task", "tasks"} & set(given):
        yield ("augment",), "augment: needs a task whose examples it adds to"
    if "teacher" not in given and not augment.keeps_labels:
        yield ("augment",), "augment: adds texts without labels, which a teacher must answer, and there is none"
    if task is None:
        return
    kind = kind_of(task.kind)
    if kind.no_augment:
        yield ("augment",), f"augment: {kind.name} {kind.no_augment}"
    if not kind.words and augment.rule == "bilstm" and augment.tagger == DATA and augment.pos:
        sentence = f"augment.tagger: only tagging data has tags, and the task is {kind.name}; name a spaCy pipeline"
        yield ("augment", "tagger"), sentence
