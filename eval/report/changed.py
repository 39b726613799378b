"""Examples that models answer differently, as a table: what was asked, the truth, each answer, and who is right."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

from eval.examples import TEXT, Example
from eval.kinds.kind_registry import kind_of
from eval.predictions import Kept
from eval.report.page_tables import Cell, Grid, grid
from eval.report.summary import count, percent
from eval.task import TaskSpec

MOST = 100
"""Examples that a table lists."""
LONGEST = 240
"""Characters of a text that a table shows."""
NOBODY = "none"
"""Stands for all models being wrong."""


@dataclass(frozen=True)
class Changed:
    """Answers that differ.

    Attributes:
        said: How many they are, and whose are right.
        table: The examples, or the first of each sort; None where there are none to list.
        places: Their places among the examples, all of them.
    """

    said: str
    table: Grid | None
    places: tuple[int, ...] = ()


def changed(spec: TaskSpec, kept: Mapping[str, Kept], examples: Sequence[Example] | None = None) -> Changed:
    """Return what the answers of two models or more differ in.

    Args:
        spec: What was asked.
        kept: Predictions of each model on the same examples, by the model's name.
        examples: The examples; without them the table has their numbers alone.
    """
    kind, (first, *_) = kind_of(spec.kind), kept.values()
    if kind.unlisted:
        return Changed(f"Answers that differ are not listed: {kind.unlisted}", None)
    if len({len(one.answers) for one in kept.values()}) > 1 or (examples and len(examples) != len(first.answers)):
        raise ValueError("the predictions are of other examples")
    apart = kind.told_apart(first.gold, [one.answers for one in kept.values()], examples)
    if not apart:
        return Changed(f"All {count(len(first.answers))} answers are the same", None)
    values = {place: {name: one.values[place] for name, one in kept.items()} for place in apart}
    right = {place: _right(each) for place, each in values.items()}
    share = percent(len(apart) / len(first.answers))
    graded = all(value in (0.0, 1.0) for each in values.values() for value in each.values())
    whose = "right" if graded else "better"
    summary = (
        f"{count(len(apart))} of {count(len(first.answers))} answers differ ({share}); {whose}: {_tally(right, kept)}"
    )
    shown = _of_each(right)
    if len(shown) < len(apart):
        summary += f". {count(len(shown))} of them are listed, the first of each sort"
    asked = ["text"] if examples else []
    headings = ["number", *asked, "truth", *kept, whose]
    rows: list[list[Cell | str]] = []
    for place in shown:
        text = [_text(spec, examples[place])] if examples else []
        answers = (Cell(said[:LONGEST]) for said in apart[place])
        rows.append([str(place + 1), *text, *answers, Cell(", ".join(right[place]) or NOBODY)])
    table = grid(headings, rows, words=range(1, len(headings)), names=(), texts=(1,) if examples else (), sortable=True)
    return Changed(summary, table, tuple(apart))


def _right(values: Mapping[str, float]) -> tuple[str, ...]:
    """Return whose answers have the best score; none where all are equally wrong."""
    best = max(values.values())
    found = tuple(name for name, value in values.items() if value == best)
    return () if len(found) == len(values) and best < 1 else found


def _tally(right: Mapping[int, tuple[str, ...]], names: Iterable[str]) -> str:
    found = Counter(name for those in right.values() for name in those or (NOBODY,))
    return ", ".join(f"{name} {count(found[name])}" for name in (*names, NOBODY))


def _of_each(right: Mapping[int, tuple[str, ...]]) -> list[int]:
    """Return up to ``MOST`` places, as evenly from those that each is right in as there are; in order."""
    sorts: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for place, who in right.items():
        sorts[who].append(place)
    turns = (place for place in chain.from_iterable(zip_longest(*sorts.values())) if place is not None)
    return sorted(place for place, _ in zip(turns, range(MOST), strict=False))


def _text(spec: TaskSpec, example: Example) -> Cell:
    """Return the first field that is read, with the others below it."""
    names = [name for name in kind_of(spec.kind).given(spec.pair) if name in example]
    fields = [example[name] for name in names or TEXT]  # a query of a reranker has its documents elsewhere
    first, *others = (" ".join(field) if isinstance(field, list) else str(field) for field in fields)
    return Cell(first[:LONGEST], small=" · ".join(others)[:LONGEST])
