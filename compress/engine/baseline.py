"""The baseline of a recipe: the same student, trained on labels only, and what it does not share with the result."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compress.artifact.record import Record
    from compress.recipe import Recipe
    from teachers.training.config import Training

BASELINE = "no teacher"
"""What reports call the baseline."""


def without_teacher(recipe: Recipe, labelled: int = 1, learned: int = 1) -> Recipe:
    """Return the recipe of the baseline: the same steps, each with the labels in the place of a teacher.

    Where the steps learn from more examples than have labels, as ``augment`` adds some, the baseline passes over its
    own as often as gives the same number of optimizer steps.

    Args:
        recipe: What is done with a teacher.
        labelled: Examples of the task, which the baseline learns from.
        learned: Examples that the steps learn from.
    """
    steps = tuple(step.without_teacher() for step in recipe.steps)
    if learned > labelled:
        steps = tuple(step.with_trainings(lambda block: _longer(block, labelled, learned)) for step in steps)
    return recipe.model_copy(update={"steps": steps})


def _longer(training: Training, labelled: int, learned: int) -> Training:
    ours, theirs = (math.ceil(count / training.batch_size) for count in (labelled, learned))
    total = math.ceil(training.epochs * theirs)
    most = total if training.max_steps is None else min(total, training.max_steps)
    return training.model_copy(update={"epochs": total / ours, "max_steps": most})


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
        for field in sorted((mine.keys() | other.keys()) - {"epochs", "max_steps"}):  # the optimizer steps say it
            if mine.get(field) != other.get(field):
                yield f"{field} {mine.get(field)}, without teacher {other.get(field)}"


def _trainings(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [block for block in config.values() if isinstance(block, dict) and "learning_rate" in block]


def _optimizer_steps(record: Record) -> int:
    """Return how many steps the trainings of a record made; of each stage the last entry tells."""
    steps = [int(row.get("step") or 0) for row in record.facts.get("history", ())]
    return sum(step for place, step in enumerate(steps) if step >= (steps[place + 1 :] or [0])[0])
