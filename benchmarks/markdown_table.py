"""Rows as a table of Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells, of which the first are the headings, as a table."""
    head, *rest = (f"| {' | '.join(cells)} |" for cells in rows)
    return "\n".join([head, "|---" * len(rows[0]) + "|", *rest])
