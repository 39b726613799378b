"""What commands print: tables for people, JSON for scripts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from eval.result import Result

PIPE_WIDTH = 160
"""Columns of a table that does not go to a terminal."""


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> None:
    """Print a table on standard output.

    Args:
        headings: One a column; a leading ``>`` aligns the column to the right.
        rows: Cells as text; nothing in them is read as markup.
        title: A line above.
    """
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left")
    for heading in headings:
        right = heading.startswith(">")
        grid.add_column(heading.lstrip(">"), justify="right" if right else "left", no_wrap=right, overflow="fold")
    for row in rows:
        grid.add_row(*(Text(cell) for cell in row))
    show(grid)


def show(renderable: Any) -> None:
    """Print something of rich on standard output."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPE_WIDTH)
    console.print(renderable)


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
