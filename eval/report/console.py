"""Results as tables for the console."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from eval.report.attributed import attribution_headings, attribution_rows, attribution_sentences
from eval.report.plain_text import plain
from eval.report.summary import (
    count,
    difference,
    family,
    headline,
    number,
    role_sentences,
    search_sentences,
    short,
    verdict,
    with_reference,
)
from eval.report.under_stress import sentences_of, stress_headings, stress_rows
from eval.result_values import ResultValues

STYLES = {"non-inferior": "green", "inferior": "red", "not shown": "yellow", "selection": "yellow"}
LONGEST_NAME = 40
PIPE_WIDTH = 160
"""Columns of what does not go to a terminal."""

Column = tuple[str, list[Text]]
"""A heading, which may have two lines, and a cell for each result."""


def output_width() -> int:
    """Return how many columns standard output has: those of the terminal, else ``COLUMNS``, else ``PIPE_WIDTH``."""
    console = Console()
    return console.width if console.is_terminal or os.environ.get("COLUMNS", "").isdigit() else PIPE_WIDTH


def tables(results: Sequence[ResultValues], batch: int = 1, width: int = PIPE_WIDTH) -> list[Table]:
    """Return a table with a row a result, the reference first; two, scores and costs, where one is too wide.

    Args:
        results: What ``measure`` returned.
        batch: Batch size of the timings shown.
        width: Columns that there are.
    """
    rows = with_reference(results)
    names = [Text(plain(row.name, LONGEST_NAME)) for row in rows]
    scores, costs = _scores(rows), _costs(rows, batch)
    one = _grid(names, [(heading.replace("\n", " "), cells) for heading, cells in [*scores, *costs]])
    if Console(width=10_000).measure(one).maximum <= width:
        return [one]
    return [_grid(names, scores), _grid(names, costs)]


def _grid(names: Sequence[Text], columns: Sequence[Column], first: str = "name") -> Table:
    grid = Table(box=None, pad_edge=False, header_style="bold")
    grid.add_column(first, overflow="fold", vertical="bottom")
    for heading, _ in columns:
        grid.add_column(heading, justify="left" if heading == "verdict" else "right", no_wrap=True)
    for row, name in enumerate(names):
        grid.add_row(name, *(cells[row] for _, cells in columns))
    return grid


def _scores(rows: Sequence[ResultValues]) -> list[Column]:
    found: list[Column] = [(plain(rows[0].metric) if rows else "score", [Text(number(row.score)) for row in rows])]
    if any(row.comparison for row in rows):
        said = [row.comparison.verdict if row.comparison else None for row in rows]
        found += [
            ("difference [95% interval]", [Text(difference(row)) for row in rows]),
            ("verdict", [Text(word, STYLES[word]) if word else Text("") for word in said]),
        ]
    return found


def _costs(rows: Sequence[ResultValues], batch: int) -> list[Column]:
    sizes, timings = [row.size for row in rows], [row.row(batch) for row in rows]
    found: list[Column] = [
        ("parameters", [Text(short(size.parameters if size else None)) for size in sizes]),
        ("bytes", [Text(short(row.bytes, "B")) for row in rows]),
    ]
    if any(row.index is not None for row in rows):
        found.append(("index\nbytes", [Text(short(row.index.bytes if row.index else None, "B")) for row in rows]))
    if any(row.memory is not None for row in rows):
        found.append(("peak\nmemory", [Text(short(row.memory.bytes if row.memory else None, "B")) for row in rows]))
    found.append(("MACs", [Text(short(size.macs if size else None)) for size in sizes]))
    if any(row.layers is not None for row in rows):
        found.append(("layers", [Text(number(row.layers, 2)) for row in rows]))
    return [
        *found,
        (f"p50 ms,\nbatch {batch}", [Text(number(timing.p50_ms if timing else None, 2)) for timing in timings]),
        ("examples/s", [Text(count(timing.examples_per_second if timing else None)) for timing in timings]),
    ]


def table_text(results: Sequence[ResultValues], batch: int = 1, width: int | None = None) -> str:
    """Return the table as plain text.

    Args:
        results: What ``measure`` returned.
        batch: Batch size of the timings shown.
        width: Columns that there are; by default those of standard output.
    """
    console = _plain_console(width)
    for place, table in enumerate(tables(results, batch, console.width)):
        if place:
            console.print()
        console.print(table)
    return _lines(console)


def to_text(results: Sequence[ResultValues], batch: int = 1, width: int | None = None) -> str:
    """Return the table, and a sentence for each result that has a reference, as plain text.

    Args:
        results: What ``measure`` returned.
        batch: Batch size of the timings shown.
        width: Columns that there are; by default those of standard output.
    """
    console = _plain_console(width)
    for sentence in (*role_sentences(results), *search_sentences(results)):
        console.print()
        console.print(Text(plain(sentence + ".")))
    for result in results:
        if result.comparison is not None:
            console.print()
            console.print(Text(plain(headline(result) + ".")))
            console.print(Text(plain(verdict(result) + ".")))
    if said := family(results):
        console.print()
        console.print(Text(plain(said + ".")))
    for result in results:
        if result.stress:
            console.print()
            console.print(_by_row(stress_headings(result), stress_rows(result.stress)))
            for sentence in sentences_of(result):
                console.print(Text(plain(sentence + ".")))
        if result.attributions:
            console.print()
            console.print(_by_row(attribution_headings(result), attribution_rows(result)))
            for sentence in attribution_sentences(result):
                console.print(Text(plain(sentence + ".")))
    return table_text(results, batch, width) + _lines(console)


def _by_row(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return a table whose first column holds words and the others figures."""
    names, *figures = headings
    columns = [
        (plain(heading, LONGEST_NAME), [Text(row[place]) for row in rows])
        for place, heading in enumerate(figures, start=1)
    ]
    return _grid([Text(row[0]) for row in rows], columns, names)


def _plain_console(width: int | None) -> Console:
    """Return a console that keeps what is printed."""
    width = output_width() if width is None else width
    return Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False, legacy_windows=False)


def _lines(console: Console) -> str:
    kept = console.file
    assert isinstance(kept, io.StringIO)
    return "".join(f"{line.rstrip()}\n" for line in kept.getvalue().splitlines())
