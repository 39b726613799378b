"""Which step can follow which: what each needs, and what an earlier one took away."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from compress.reading.yaml_places import Location

if TYPE_CHECKING:
    from compress.technique import Technique

HINTS = {
    "train": "a task with training data",
    "calibration": "a task whose data gives the ranges of activations",
    "teacher": "a teacher",
}


def step_problems(steps: Sequence[tuple[int, Technique]], have: Collection[str]) -> Iterator[tuple[Location, str]]:
    """Find steps that lack an input, train what can no longer be trained, or need what an earlier step took away.

    Args:
        steps: Techniques with their places among the steps, counted from 0.
        have: The inputs that are there.

    Yields:
        The place in the recipe and the sentence.
    """
    for index, step in steps:
        for need in sorted(step.needed() - set(have)):
            yield ("steps", index), f"step {index + 1}, {step.name}: needs {HINTS[need]}, and there is none"
    for index, problem in order_problems(steps):
        yield ("steps", index), problem.sentence


@dataclass(frozen=True)
class OrderProblem:
    """Why a step cannot follow another.

    Attributes:
        kind: ``frozen``: it trains what can no longer be trained. ``last``: the other must be the last step.
            ``own``: the other makes a network without the layers that it works on. ``after``: a reason of its own.
        reason: What is wrong and what to do.
        sentence: The same with both steps named.
    """

    kind: Literal["frozen", "last", "own", "after"]
    reason: str
    sentence: str


def order_problems(steps: Sequence[tuple[int, Technique | type[Technique]]]) -> Iterator[tuple[int, OrderProblem]]:
    """Find steps that cannot follow an earlier one.

    Args:
        steps: Techniques with their places among the steps, counted from 0; of a class its defaults count.

    Yields:
        The place of the later step and what is wrong.
    """
    frozen: tuple[int, Technique | type[Technique]] | None = None
    made: tuple[int, Technique | type[Technique]] | None = None
    last: tuple[int, Technique | type[Technique]] | None = None
    for index, step in steps:
        where = f"step {index + 1}, {step.name}"
        if step.trains and frozen is not None:
            number, before = frozen
            sentence = f"{where}: trains, but step {number + 1}, {before.name}, leaves weights that cannot be trained"
            reason = "trains, and the other leaves weights that cannot be trained; put it before"
            yield index, OrderProblem("frozen", reason, f"{sentence}; put it before")
        elif last is not None:
            number, before = last
            sentence = f"{where}: comes after step {number + 1}, {before.name}, which must be the last step"
            yield (
                index,
                OrderProblem("last", "the other must be the last step; put it before", f"{sentence}; put it before"),
            )
        for number, before in steps:
            reasons = _reasons_against(before, step) if number < index else ()
            for reason in reasons:
                sentence = f"{where}: cannot follow step {number + 1}, {before.name}: {reason}"
                yield index, OrderProblem("after", reason, sentence)
        if made is not None and not step.takes_any:
            number, before = made
            sentence = f"{where}: works on transformer layers, but step {number + 1}, {before.name}, makes"
            reason = f"works on transformer layers, and the other makes {before.makes}; put it before"
            yield index, OrderProblem("own", reason, f"{sentence} {before.makes}; put it before")
        if step.makes:
            made = (index, step)
        if step.freezes and frozen is None:
            frozen = (index, step)
        if step.last and last is None:
            last = (index, step)


def _reasons_against(before: Technique | type[Technique], step: Technique | type[Technique]) -> Iterator[str]:
    """Yield why a step cannot follow one before it, for its name or for the zeros that it leaves."""
    if before.name in step.not_after:
        yield step.not_after[before.name]
    zeros = before.zeros if isinstance(before, type) else before.leaves_zeros()
    yield from dict.fromkeys(
        reason for part, reason in (step.remakes if isinstance(step, type) else step.remade()).items() if part in zeros
    )
