"""Results as one table for the console."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from eval.report.plain_text import plain
from eval.report.summary import count, difference, headline, number, role_sentences, short, verdict, with_reference
from eval.result_values import ResultValues

STYLES = {"non-inferior": "green", "inferior": "red", "not shown": "yellow", "selection": "yellow"}
LONGEST_NAME = 40


def table(results: Sequence[ResultValues], batch: int = 1) -> Table:
    """Return one row a result, the reference first.

    Args:
        results: What ``measure`` returned.
        batch: Batch size of the timings shown.
    """
    rows = with_reference(results)
    grid = Table(box=None, pad_edge=False, header_style="bold")
    grid.add_column("name", overflow="fold")
    metric = plain(rows[0].metric) if rows else "score"
    for heading in (
        metric,
        "difference [95% interval]" if _shown(rows) else None,
        "verdict" if _shown(rows) else None,
        "parameters",
        "bytes",
        "peak memory" if _weighed(rows) else None,
        "MACs",
        "layers" if _early(rows) else None,
        f"p50 ms, batch {batch}",
        "examples/s",
    ):
        if heading is not None:
            grid.add_column(heading, justify="left" if heading == "verdict" else "right", no_wrap=True)
    for result in rows:
        grid.add_row(*_cells(result, batch, _shown(rows), _early(rows), _weighed(rows)))
    return grid


def _shown(results: Sequence[ResultValues]) -> bool:
    return any(result.comparison for result in results)


def _early(results: Sequence[ResultValues]) -> bool:
    return any(result.layers is not None for result in results)


def _weighed(results: Sequence[ResultValues]) -> bool:
    return any(result.memory is not None for result in results)


def _cells(result: ResultValues, batch: int, compared: bool, early: bool, weighed: bool) -> list[Text]:
    size, timing = result.size, result.row(batch)
    comparison = result.comparison
    verdict_of = Text(comparison.verdict, STYLES[comparison.verdict]) if comparison else Text("")
    between = [Text(difference(result)), verdict_of] if compared else []
    return [
        Text(plain(result.name, LONGEST_NAME)),
        Text(number(result.score)),
        *between,
        Text(short(size.parameters if size else None)),
        Text(short(result.bytes, "B")),
        *([Text(short(result.memory.bytes if result.memory else None, "B"))] if weighed else []),
        Text(short(size.macs if size else None)),
        *([Text(number(result.layers, 2))] if early else []),
        Text(number(timing.p50_ms if timing else None, 2)),
        Text(count(timing.examples_per_second if timing else None)),
    ]


def to_text(results: Sequence[ResultValues], batch: int = 1, width: int = 160) -> str:
    """Return the table, and a sentence for each result that has a reference, as plain text for logs."""
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, force_terminal=False, legacy_windows=False)
    console.print(table(results, batch))
    for sentence in role_sentences(results):
        console.print()
        console.print(Text(plain(sentence + ".")))
    for result in results:
        if result.comparison is not None:
            console.print()
            console.print(Text(plain(headline(result) + ".")))
            console.print(Text(plain(verdict(result) + ".")))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"
