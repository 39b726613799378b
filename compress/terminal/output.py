"""What commands print: tables for people, JSON for scripts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.text import Text

    from eval.result import Result

NARROW = 100
"""Columns below which tables leave out what can be looked up elsewhere."""
KEPT_WHOLE = 20
"""Characters up to which the longest cell of a column keeps the column from being wrapped."""


def is_narrow() -> bool:
    """Whether standard output has few columns, as a terminal of 80 has."""
    from eval.report.console import output_width

    return output_width() < NARROW


def table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None, spare: Sequence[str] = ()
) -> None:
    """Print a table on standard output that fits its width.

    Args:
        headings: One a column; a leading ``>`` aligns the column to the right, a line break stands where a narrow
            column may break it.
        rows: Cells as text; nothing in them is read as markup.
        title: A line above.
        spare: Headings of columns that a narrow table leaves out.
    """
    from rich.table import Table

    kept = [place for place, heading in enumerate(headings) if not (is_narrow() and heading in spare)]
    cells = [[row[place] for place in kept] for row in rows]
    grid = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left")
    for column, place in enumerate(kept):
        heading, right = headings[place].lstrip(">"), headings[place].startswith(">")
        whole = right or max((len(row[column]) for row in cells), default=0) <= KEPT_WHOLE
        grid.add_column(
            heading if is_narrow() else heading.replace("\n", " "),
            justify="right" if right else "left",
            no_wrap=whole,
            overflow="fold",
        )
    for row in cells:
        grid.add_row(*map(styled, row))
    show(grid)


def styled(text: str) -> Text:
    """Return text whose ````code```` is styled where colours are shown, without the marks; nothing else is markup."""
    from rich.text import Text

    parts = text.split("``")
    return Text.assemble(*((part, "cyan" if place % 2 else "") for place, part in enumerate(parts)))


def prose(text: str, indent: int = 0) -> None:
    """Print a docstring on standard output: paragraphs and lists, wrapped anew at the width that there is.

    Args:
        text: Its lines; those of a paragraph have one indent, a list entry begins with ``-``.
        indent: Spaces before all of it.
    """
    from rich.padding import Padding
    from rich.table import Table

    for depth, words in _blocks(text):
        entry = Table.grid(padding=(0, 1))
        mark, words = ("-", words[2:]) if words.startswith("- ") else ("", words)
        entry.add_row(*([mark] if mark else []), styled(words))
        show(Padding(entry, (0, 0, 0, indent + depth), expand=False))


def _blocks(text: str) -> list[tuple[int, str]]:
    """Return the paragraphs and list entries of a text, each with its indent; an empty one is an empty line."""
    found: list[tuple[int, str]] = []
    hanging = -1
    for line in text.splitlines():
        words, depth = line.strip(), len(line) - len(line.lstrip())
        if words and depth == hanging and not words.startswith("- "):
            found[-1] = (found[-1][0], f"{found[-1][1]} {words}")
            continue
        found.append((depth if words else 0, words))
        hanging = -1 if not words else depth + (2 if words.startswith("- ") else 0)
    return found


def show(renderable: Any) -> None:
    """Print something of rich on standard output."""
    from rich.console import Console

    from eval.report.console import output_width

    Console(width=output_width()).print(renderable)


def as_json(value: Any) -> str:
    """Return a value as JSON for people and scripts."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def write_json(value: Any) -> None:
    """Print a value as JSON on standard output."""
    typer.echo(as_json(value))


def plain(result: Result) -> dict[str, Any]:
    """Return the figures of a measurement as plain JSON values; what is no number becomes null."""
    figures: dict[str, Any] = json.loads(result.to_json())
    return figures


def megabytes(count: float) -> str:
    """Return bytes as millions of bytes."""
    return f"{count / 1e6:,.1f}"


def duration(seconds: float) -> str:
    """Return a rough length of time in words that fit its size."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
