"""The baseline of a recipe: the same student, trained on labels only; what it does not share with the result; notes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from eval.kinds.kind_registry import kind_of
from eval.naming import public_name
from eval.scores import score
from eval.task import BM25

if TYPE_CHECKING:
    from compress.artifact.record import Record
    from compress.recipe import Recipe
    from eval.result import Result
    from eval.task import Example, TaskSpec

BASELINE = "no teacher"
"""What reports call the baseline."""
LENGTH = {"epochs", "max_steps", "score_epochs"}
"""Fields of a training that say how long it is, in epochs of the examples that it has."""


def without_teacher(recipe: Recipe, labelled: int = 1, learned: int = 1) -> Recipe:
    """Return the recipe of the baseline: the same steps, each with the labels in the place of a teacher.

    Where the steps learn from other examples than the baseline, because ``augment`` adds some or a file of predictions
    leaves some out, the baseline passes over its own as often as gives the same number of optimizer steps.

    Args:
        recipe: What is done with a teacher.
        labelled: Inputs that the task's examples are, which the baseline learns from; a long text may be several.
        learned: Inputs that the steps learn from.
    """
    steps = (step.without_teacher() for step in recipe.steps)
    equal = tuple(step.with_trainings(lambda block: block.as_long(labelled, learned)) for step in steps)
    return recipe.model_copy(update={"steps": equal})


def baseline_differences(result: Sequence[Record], baseline: Sequence[Record]) -> list[str]:
    """Return in what the trainings of a result and of its baseline differ, a phrase each; nothing if they are alike.

    Compared are the weights before the first step, and of each step the examples, those that choose the best epoch, the
    optimizer steps, and every value of the ``training`` blocks.

    Args:
        result: The lineage of the result.
        baseline: That of the baseline, made by the same steps without a teacher.
    """
    first, other = ([record for record in records if "." in record.technique] for records in (result, baseline))
    found: list[str] = []
    if len(first) != len(other):
        found.append(f"{len(first)} steps, without teacher {len(other)}")
    for number, (one, two) in enumerate(zip(first, other, strict=False), start=1):
        if number == 1 and one.weights_before != two.weights_before:
            found.append("the weights before the first step")
        found += [f"step {number}, {phrase}" for phrase in _differences(one, two)]
    return found


def baseline_notes(result: Sequence[Record], baseline: Sequence[Record]) -> list[str]:
    """Return what reports say of a baseline: how many optimizer steps it made, and in what it differs beside.

    Args:
        result: The lineage of the result.
        baseline: That of the baseline.
    """
    ours, theirs = (sum(map(_optimizer_steps, records)) for records in (result, baseline))
    notes = [f"{BASELINE} made {theirs:,} optimizer steps, as many as the result."] if ours == theirs > 0 else []
    found = baseline_differences(result, baseline)
    return [*notes, f"{BASELINE} differs in more than the teacher: {'; '.join(found)}."] if found else notes


def _differences(one: Record, two: Record) -> Iterator[str]:
    for role, said in (("train", "the training examples"), ("validation", "the examples that choose")):
        if one.data.get(role) != two.data.get(role):
            yield said
    steps = [_optimizer_steps(record) for record in (one, two)]
    if steps[0] != steps[1]:
        yield f"{steps[0]:,} optimizer steps, without teacher {steps[1]:,}"
    ours, theirs = _trainings(one.config), _trainings(two.config)
    if len(ours) != len(theirs):
        yield f"{len(ours)} trainings, without teacher {len(theirs)}"
    for mine, other in zip(ours, theirs, strict=False):
        for field in sorted((mine.keys() | other.keys()) - LENGTH):  # the optimizer steps say it
            if mine.get(field) != other.get(field):
                yield f"{field} {mine.get(field)}, without teacher {other.get(field)}"


def _trainings(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [block for block in config.values() if isinstance(block, dict) and "learning_rate" in block]


def _optimizer_steps(record: Record) -> int:
    """Return how many steps the trainings of a record made; of each stage the last entry tells."""
    steps = [int(row.get("step") or 0) for row in record.facts.get("history", ())]
    return sum(step for place, step in enumerate(steps) if step >= (steps[place + 1 :] or [0])[0])


def weak_teacher_notes(recipe: Recipe, own: Result | None) -> list[str]:
    """Return what is said where a model is better beyond chance than the teacher that its recipe fine-tunes.

    Further text (``augment``) may make a model better than a teacher that has learned all it can; then nothing is said.
    """
    compared = None if own is None else own.comparison
    if own is None or compared is None or compared.verdict == "selection" or compared.difference.low <= 0:
        return []
    against_teacher = recipe.evaluate is not None and recipe.evaluate.against == "teacher"
    if not against_teacher or recipe.augment is not None or recipe.teacher is None or recipe.teacher.finetune is None:
        return []
    found = compared.difference
    return [
        f"{own.name} is better than its teacher, by {found.value:.3f} {compared.metric} [{found.low:.3f}, "
        f"{found.high:.3f}], so the teacher has not learned the task as well as it could, and what is retained of it "
        "says little. Train it for longer or at a higher rate (teacher.finetune: epochs, learning_rate), and run again."
    ]


def constant_notes(results: Sequence[Result]) -> list[str]:
    """Return what is said of models that give every example the same label, whose scores are that label's share."""
    found = []
    for result in results:
        answers = result.kept.answers if result.kept is not None else ()
        labels = {answer.get("label") for answer in answers}
        if len(answers) > 1 and len(labels) == 1 and len(result.task.labels) > 1 and labels != {None}:
            found.append(
                f"{result.name} answers {labels.pop()!r} for all {len(answers)} examples, so it has not learned the "
                "task: its score is the share of that label, and to retain it says nothing."
            )
    return found


def first_stage_notes(spec: TaskSpec, examples: Sequence[Example], own: Result | None) -> list[str]:
    """Return the metric of a first stage by itself, where there is one, with its name, and whether a model is above it.

    Args:
        spec: The task.
        examples: That were scored.
        own: Result of the recipe.
    """
    answers = kind_of(spec.kind).before_any_model(examples)
    if not answers:
        return []
    alone = score(spec, answers, examples)[spec.metric]
    named = spec.first_stage if spec.first_stage == BM25 else public_name(spec.first_stage)
    note = f"The order of the first stage alone ({named}) has {spec.metric} {alone:.4f}."
    if own is not None and own.scores[spec.metric] <= alone:
        note += f" {own.name} is not above it, so on this data it brings nothing, whatever it retains of its teacher."
    return [note]
