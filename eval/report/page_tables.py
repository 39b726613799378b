"""What the tables of a page show; ``templates/page_parts.html.j2`` says how."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eval.cost.latency import LatencyRow
from eval.report.plain_text import plain
from eval.report.speed import engine_of, references, speed_interval
from eval.report.summary import count, difference, listed, number, percent, short, times
from eval.result_values import ResultValues
from eval.slices import Confusion, Slice

PILLS = {"non-inferior": "good", "inferior": "bad", "not shown": "unsure", "selection": "unsure"}
LONGEST_HEADING = 24
LONGEST_WORD = 48
MOST_SLICES = 20
"""Parts of the data that one table shows."""
SIZES = ("parameters", "bytes", "macs")
UPRIGHT_FROM, WIDE_FROM = 7, 9
"""Labels from which the headings of a confusion table stand upright, and from which it gets the full width."""
LONGEST_LEVEL = 10
"""Characters of a heading up to which it need not stand upright."""


@dataclass(frozen=True)
class Cell:
    """A cell of a table: a text, a coloured label, or a bar.

    Attributes:
        text: What it says.
        small: A second line.
        colour: Colour of a label: good, bad or unsure.
        bar: Length of a bar in percent.
        mark: Place of a mark on the bar in percent.
        value: What a sortable table sorts by, where that is not the text.
    """

    text: str = ""
    small: str = ""
    colour: str = ""
    bar: str | None = None
    mark: str | None = None
    value: float | None = None


@dataclass(frozen=True)
class Grid:
    """A table.

    Attributes:
        columns: Heading and kind of each: name, facts (words), text (sentences) or n (aligned numbers).
        rows: A cell for each column.
        sortable: Whether a click on a heading sorts the rows, where scripts run.
    """

    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Cell, ...], ...]
    sortable: bool = False


@dataclass(frozen=True)
class Label:
    """A label of a confusion table, in full and as its heading says it."""

    text: str
    brief: str


@dataclass(frozen=True)
class Count:
    """A cell of a confusion table: examples, whether they are a hit, a miss or none, and its shade from 0 to 1."""

    count: int
    kind: str
    share: str


@dataclass(frozen=True)
class HeatMap:
    """A confusion table, true labels by predicted labels.

    Attributes:
        labels: Of rows and columns.
        rows: The cells of each true label.
        upright: Whether the headings of columns are written upwards.
        wide: Whether it needs the whole width of the page.
    """

    labels: tuple[Label, ...]
    rows: tuple[tuple[Count, ...], ...]
    upright: bool
    wide: bool


def grid(
    headings: Sequence[str],
    rows: Iterable[Sequence[Cell | str]],
    words: Sequence[int] = (0,),
    *,
    texts: Sequence[int] = (),
    names: Sequence[int] = (0,),
    sortable: bool = False,
) -> Grid:
    """Return a table; the columns in ``texts``, ``names`` and ``words`` hold words, the others aligned numbers."""
    held = {column: kind for kind, those in (("facts", words), ("name", names), ("text", texts)) for column in those}
    kinds = [held.get(column, "n") for column in range(len(headings))]
    cells = (tuple(_brief(cell) for cell in row) for row in rows)
    return Grid(tuple(zip(headings, kinds, strict=True)), tuple(cells), sortable)


def _brief(cell: Cell | str) -> Cell:
    """Keep one unbroken word from pushing a table off the page."""
    if isinstance(cell, Cell):
        return cell
    return Cell(plain(cell, LONGEST_WORD) if max(map(len, cell.split()), default=0) > LONGEST_WORD else cell)


def pill(result: ResultValues) -> Cell:
    """Return the verdict as a coloured label; a dash without a reference."""
    comparison = result.comparison
    return Cell("-") if comparison is None else Cell(comparison.verdict, colour=PILLS[comparison.verdict])


def quality_table(results: Sequence[ResultValues]) -> Grid:
    """Return one row a result: scores, difference, verdict, agreement and calibration."""
    names = list(dict.fromkeys(name for result in results for name in result.scores))
    compared = any(result.comparison for result in results)
    calibrated = any(result.calibration_error is not None for result in results)
    headings = ["model", *names]
    headings += ["difference, 95% interval", "verdict", "agreement"] if compared else []
    headings += ["calibration error"] if calibrated else []
    rows = []
    for result in results:
        cells: list[Cell | str] = [result.name, *(number(result.scores.get(name)) for name in names)]
        if compared:
            value, _, interval = difference(result).partition(" ")
            agreed = next(iter(result.comparison.agreement.values()), None) if result.comparison else None
            cells += [Cell(value or "-", interval), pill(result), number(agreed)]
        rows.append([*cells, number(result.calibration_error)][: len(headings)])
    return grid(headings, rows)


def cost_table(results: Sequence[ResultValues], batch: int = 1) -> Grid:
    """Return one row a result: parameters, bytes, memory, multiply-accumulates, and speedups by their references."""
    reference = next((engine_of(one, one.comparison.reference) for one in results if one.comparison), "the reference")
    headings = ["model", "parameters", "not zero", "bytes"]
    headings += ["index bytes"] if (searched := any(one.index for one in results)) else []
    headings += ["peak memory"] if (measured := any(one.memory or one.no_memory for one in results)) else []
    headings += ["MACs", f"p50 ms, batch {batch}", "examples/s", f"speedup over {reference}"]
    headings += ["speedup over its own export"] if (exported := any(one.same_engine for one in results)) else []
    rows: list[list[Cell | str]] = []
    for result in results:
        size, timing = result.size, result.row(batch)
        rows.append(
            [
                result.name,
                short(size.parameters if size else None),
                percent(size.nonzero / size.parameters) if size and size.parameters else "-",
                short(result.bytes, "B"),
                *([short(result.index.bytes if result.index else None, "B")] if searched else []),
                *([_memory(result)] if measured else []),
                short(size.macs if size else None),
                number(timing.p50_ms if timing else None, 2),
                count(timing.examples_per_second if timing else None),
                _speed(result, result.comparison.reference if result.comparison else None, batch),
                *([_speed(result, result.same_engine, batch, named=True)] if exported else []),
            ]
        )
    return grid(headings, rows)


def _memory(result: ResultValues) -> Cell:
    if result.memory is None:
        return Cell("-", result.no_memory or "")
    return Cell(short(result.memory.bytes, "B"), f"{short(result.memory.rise_bytes, 'B')} of it above its libraries")


def _speed(result: ResultValues, reference: str | None, batch: int, *, named: bool = False) -> Cell:
    found = result.speed_over(reference, batch) if reference else None
    if found is None or reference is None:
        return Cell("-")
    return Cell(number(found.value, 2), f"{f'{reference}, ' if named else ''}{speed_interval(found)}")


def tiles(result: ResultValues) -> list[tuple[str, str]]:
    """Return the key figures of a compared result and what each is."""
    comparison = result.comparison
    if comparison is None:
        return []
    shrinkage = result.shrinkage()
    retained = comparison.retention.value
    size, other = result.size, comparison.reference_size
    shown = [
        *(_speed_tile(result, name) for name in references(result)),
        (percent(retained), f"of {comparison.reference}'s {comparison.metric} retained")
        if math.isfinite(retained)
        else None,
        (f"{shrinkage:.1f}\u00d7", f"smaller than {comparison.reference}: {short(result.bytes, 'B')} of weights")
        if shrinkage
        else None,
        (f"{other.macs / size.macs:.1f}\u00d7", "fewer multiply-accumulates")
        if size and other and size.macs and other.macs
        else None,
        (
            percent(next(iter(comparison.agreement.values()))),
            f"same {next(iter(comparison.agreement))} as {comparison.reference}",
        )
        if comparison.agreement
        else None,
    ]
    return [tile for tile in shown if tile]


def _speed_tile(result: ResultValues, name: str) -> tuple[str, str] | None:
    found = result.speed_over(name)
    if found is None:
        return None
    way = _direction(found.value, "faster", "slower")
    same = " in the same engine" if name == result.same_engine else ""
    return f"{found.value:.1f}\u00d7", f"{way}{same} than {engine_of(result, name)} at batch 1"


def _direction(ratio: float, more: str, less: str) -> str:
    return times(ratio, more, less).split()[-1]


def slices_table(parts: Sequence[Slice], group: str, reference: str | None) -> Grid | None:
    """Return scores of the parts of one group as bars; a tick marks the reference. Of many, only the weakest."""
    chosen = [part for part in parts if part.group == group]
    if not chosen:
        return None
    if len(chosen) > MOST_SLICES:
        chosen = sorted(chosen, key=lambda part: part.score)[:MOST_SLICES]
    headings = [group, "", "score", *([reference] if reference else []), "examples"]
    rows: list[list[Cell | str]] = []
    for part in chosen:
        bar = Cell(bar=_share(part.score), mark=None if part.reference is None else _share(part.reference))
        other = [number(part.reference, 3)] if reference else []
        rows.append([part.name, bar, number(part.score, 3), *other, count(part.examples)])
    return grid(headings, rows, words=(0, 1))


def _share(value: float) -> str:
    return f"{100 * min(max(value, 0.0), 1.0):.2f}" if math.isfinite(value) else "0"


def heat_map(confusion: Confusion) -> HeatMap | None:
    """Return the confusion table, shaded by the root of the share of the true label, hits apart from misses."""
    if not confusion.labels:
        return None
    labels = tuple(Label(label, plain(label, LONGEST_HEADING)) for label in confusion.labels)
    rows = []
    for place, counts in enumerate(confusion.counts):
        total = sum(counts) or 1
        kinds = ("none" if not cell else "hit" if column == place else "miss" for column, cell in enumerate(counts))
        shades = (f"{math.sqrt(cell / total):.3f}" for cell in counts)
        rows.append(tuple(map(Count, counts, kinds, shades)))
    upright = len(labels) >= UPRIGHT_FROM or max(len(label.brief) for label in labels) > LONGEST_LEVEL
    return HeatMap(labels, tuple(rows), upright, wide=len(labels) >= WIDE_FROM)


def errors_table(confusion: Confusion) -> Grid | None:
    """Return the most frequent errors."""
    if not confusion.pairs:
        return None
    rows = [(true, predicted, str(examples)) for true, predicted, examples in confusion.pairs]
    return grid(["true label", "predicted", "examples"], rows, words=(0, 1))


def latency_table(results: Sequence[ResultValues]) -> Grid | None:
    """Return every timing and how sure it is, repeats of a reference that was timed with several models left out."""
    rows, seen = [], set()
    for result in results:
        for row in result.latency:
            key = (row.name, row.batch, row.lengths)
            if key in seen:
                continue
            seen.add(key)
            rates = [count(row.examples_per_second), count(row.tokens_per_second)]
            middle = Cell(number(row.p50_ms, 2), "" if row.median is None else speed_interval(row.median))
            tails = [number(value, 2) for value in (row.p95_ms, row.p99_ms)]
            rows.append([row.name, str(row.lengths), str(row.batch), middle, *tails, *rates, *_certainty(row)])
    headings = ["model", "lengths", "batch", "p50 ms", "p95 ms", "p99 ms", "examples/s", "tokens/s"]
    headings += ["rounds", "spread", "threads", "load"]
    return grid(headings, rows) if rows else None


def _certainty(row: LatencyRow) -> list[Cell | str]:
    """Return rounds, their interquartile range, threads, and load of the machine before and after."""
    queries = "" if row.queries is None else f"{count(row.queries)} queries"
    settled = "" if row.settled in (None, True) else "not settled"
    load = "-" if row.load is None else f"{row.load[0]:g}, {row.load[1]:g}"
    return [
        Cell(count(row.rounds), queries),
        Cell("-" if row.iqr is None else percent(row.iqr), settled),
        "-" if row.threads is None else str(row.threads),
        Cell(load, "" if row.cpus is None else f"{row.cpus} cpus"),
    ]


def chain(lineage: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the steps that made the model, from its source on."""
    names = [str(record.get("technique", "?")) for record in lineage]
    return names if names[:1] == ["source"] else ["source", *names]


def lineage_table(lineage: Sequence[Mapping[str, Any]]) -> Grid:
    """Return one row a step that made the model, with settings, sizes and facts."""
    headings = ["step", "settings", "parameters", "bytes", "MACs", "seconds", "seed", "facts"]
    rows = [
        [
            f"{place}. {record.get('technique', '?')} v{record.get('version', '?')}",
            listed(record.get("config")),
            *(_change(record, key, "B" if key == "bytes" else "") for key in SIZES),
            number(record.get("seconds"), 1),
            "-" if record.get("seed") is None else str(record["seed"]),
            listed(record.get("facts")),
        ]
        for place, record in enumerate(lineage, start=1)
    ]
    return grid(headings, rows, words=(0, 1, 7))


def _change(record: Mapping[str, Any], key: str, unit: str) -> str:
    sizes = [(record.get(side) or {}).get(key) for side in ("size_before", "size_after")]
    before, after = (short(size, unit) for size in sizes)
    return before if before == after else f"{before} \u2192 {after}"
