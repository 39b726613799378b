"""What stands against the steps of a recipe: inputs that are missing, and what an earlier step took away."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from compress.reading.yaml_places import Location
from compress.traits import Handover, order_problems

if TYPE_CHECKING:
    from compress.technique import Technique

HINTS = {
    "train": "a task with training data",
    "calibration": "a task whose data gives the ranges of activations",
    "teacher": "a teacher",
}


def step_problems(
    steps: Sequence[tuple[int, Technique]], have: Collection[str], model: Handover | None = None
) -> Iterator[tuple[Location, str]]:
    """Find steps that lack an input, train what can no longer be trained, or need what an earlier step took away.

    Args:
        steps: Techniques with their places among the steps, counted from 0.
        have: The inputs that are there.
        model: What the model lacks that the steps start from, if it is known.

    Yields:
        The place in the recipe and the sentence.
    """
    for index, step in steps:
        for need in sorted(step.needed() - set(have)):
            yield ("steps", index), f"step {index + 1}, {step.name}: needs {HINTS[need]}, and there is none"
    for index, problem in order_problems([(index, step.handover()) for index, step in steps], model):
        yield ("steps", index), problem.sentence
