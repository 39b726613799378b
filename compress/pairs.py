"""Which technique can follow which: every ordered pair, as a picture in letters."""

from __future__ import annotations

from collections.abc import Iterator

from compress.registry import get, names
from compress.traits import OrderProblem, order_problems

RUNS = "."
LETTERS = {"trainable": "f", "open": "l", "transformer_layers": "o"}
"""What the second of two steps lacks after the first -> its letter."""
OWN = "x"
"""The letter of all else that it can lack."""
MEANINGS = {
    "f": "the second trains, and the first leaves weights that cannot be trained",
    "l": "the first must be the last step",
    "o": "the second works on transformer layers, and the first makes a network without",
    OWN: "for a reason of its own, below",
}


def refusal(first: str, second: str) -> OrderProblem | None:
    """Return why the second of two techniques cannot follow the first, or None."""
    steps = [(place, get(name).usual_handover()) for place, name in enumerate((first, second))]
    return next((problem for _, problem in order_problems(steps)), None)


def letter(first: str, second: str) -> str:
    """Return the letter of two techniques in the square."""
    problem = refusal(first, second)
    return RUNS if problem is None else LETTERS.get(problem.trait, OWN)


def matrix() -> Iterator[str]:
    """Return the lines of a square: a row for each technique as the first step, a column for each as the second."""
    known = names()
    numbers = [f"{number:2d}" for number in range(1, len(known) + 1)]
    left = max(map(len, known)) + 5
    for digit in (0, 1):
        yield (" " * left + " ".join(number[digit] for number in numbers)).rstrip()
    for number, first in zip(numbers, known, strict=True):
        cells = [letter(first, second) for second in known]
        yield f"{number} {first}".ljust(left) + " ".join(cells)


def refusals() -> dict[str, dict[str, str]]:
    """Return for each technique those that cannot follow it, and why."""
    known = names()
    found = {first: {second: refusal(first, second) for second in known} for first in known}
    return {first: {name: why.reason for name, why in after.items() if why} for first, after in found.items()}


def legend() -> Iterator[str]:
    """Return what the letters of the square mean, and the reasons behind x."""
    yield f"{RUNS} runs, where both are for the model's family and the kind of task; refused before any work:"
    yield from (f"{letter} {meaning}" for letter, meaning in MEANINGS.items())
    reasons: dict[tuple[str, str], list[str]] = {}
    for second in names():
        for first in names():
            problem = refusal(first, second)
            if problem is not None and problem.trait not in LETTERS:
                reasons.setdefault((second, problem.reason), []).append(first)
    for (second, reason), before in reasons.items():
        yield f"x {second} after {', '.join(before)}: {reason}"
