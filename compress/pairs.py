"""Which technique can follow which: every ordered pair, as a picture in letters."""

from __future__ import annotations

from collections.abc import Iterator

from compress.recipe.step_order import OrderProblem, order_problems
from compress.techniques import get, names

RUNS = "."
LETTERS = {"frozen": "f", "last": "l", "own": "o", "after": "x"}
MEANINGS = {
    "frozen": "the second trains, and the first leaves weights that cannot be trained",
    "last": "the first must be the last step",
    "own": "the second works on transformer layers, and the first makes a network without",
    "after": "for a reason of its own, below",
}


def refusal(first: str, second: str) -> OrderProblem | None:
    """Return why the second of two techniques cannot follow the first, or None."""
    return next((problem for _, problem in order_problems([(0, get(first)), (1, get(second))])), None)


def matrix() -> Iterator[str]:
    """Return the lines of a square: a row for each technique as the first step, a column for each as the second."""
    known = names()
    numbers = [f"{number:2d}" for number in range(1, len(known) + 1)]
    left = max(map(len, known)) + 5
    for digit in (0, 1):
        yield (" " * left + " ".join(number[digit] for number in numbers)).rstrip()
    for number, first in zip(numbers, known, strict=True):
        cells = [LETTERS[problem.kind] if (problem := refusal(first, second)) else RUNS for second in known]
        yield f"{number} {first}".ljust(left) + " ".join(cells)


def legend() -> Iterator[str]:
    """Return what the letters of the square mean, and the reasons behind x."""
    yield f"{RUNS} runs, where both are for the model's family and the kind of task; refused before any work:"
    yield from (f"{LETTERS[kind]} {meaning}" for kind, meaning in MEANINGS.items())
    reasons: dict[tuple[str, str], list[str]] = {}
    for second in names():
        for first in names():
            problem = refusal(first, second)
            if problem is not None and problem.kind == "after":
                reasons.setdefault((second, problem.reason), []).append(first)
    for (second, reason), before in reasons.items():
        yield f"x {second} after {', '.join(before)}: {reason}"
