"""The tables of the page, as elements."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from eval.report.markup import Markup, element, plain
from eval.report.summary import count, difference, number, percent, short, times
from eval.result_values import ResultValues
from eval.slices import Confusion, Slice

PILLS = {"non-inferior": "good", "inferior": "bad", "not shown": "unsure"}
LONGEST_HEADING = 24
LONGEST_WORD = 48
MOST_LISTED = 12
"""Entries up to which a list is written out."""
MOST_SLICES = 20
"""Parts of the data that one table shows."""
SIZES = ("parameters", "bytes", "macs")


def grid(headings: Sequence[str], rows: Iterable[Sequence[object]], words: Sequence[int] = (0,)) -> Markup:
    """Return a table; the columns in ``words`` hold text, the others aligned numbers."""
    kinds = ["name" if column == 0 else "facts" if column in words else "n" for column in range(len(headings))]
    head = element("tr", [element("th", text, class_=kind) for text, kind in zip(headings, kinds, strict=True)])
    body = [
        element("tr", [element("td", _brief(cell), class_=kind) for cell, kind in zip(row, kinds, strict=True)])
        for row in rows
    ]
    return element("div", element("table", element("thead", head), element("tbody", body)), class_="scroll")


def _brief(cell: object) -> object:
    """Keep one unbroken word from pushing a table off the page."""
    if isinstance(cell, str) and not isinstance(cell, Markup) and max(map(len, cell.split()), default=0) > LONGEST_WORD:
        return plain(cell, LONGEST_WORD)
    return cell


def pill(result: ResultValues) -> Markup | str:
    """Return the verdict as a coloured label; a dash without a reference."""
    comparison = result.comparison
    return (
        "-" if comparison is None else element("span", comparison.verdict, class_=f"pill {PILLS[comparison.verdict]}")
    )


def quality_table(results: Sequence[ResultValues]) -> Markup:
    """Return one row a result: scores, difference, verdict, agreement and calibration."""
    names = list(dict.fromkeys(name for result in results for name in result.scores))
    compared = any(result.comparison for result in results)
    calibrated = any(result.calibration_error is not None for result in results)
    headings = ["model", *names]
    headings += ["difference, 95% interval", "verdict", "agreement"] if compared else []
    headings += ["calibration error"] if calibrated else []
    rows = []
    for result in results:
        cells: list[object] = [result.name, *(number(result.scores.get(name)) for name in names)]
        if compared:
            value, _, interval = difference(result).partition(" ")
            agreed = next(iter(result.comparison.agreement.values()), None) if result.comparison else None
            cells += [[value or "-", element("small", interval) if interval else None], pill(result), number(agreed)]
        rows.append([*cells, number(result.calibration_error)][: len(headings)])
    return grid(headings, rows)


def cost_table(results: Sequence[ResultValues], batch: int = 1) -> Markup:
    """Return one row a result: parameters, bytes, multiply-accumulates and speed."""
    headings = [
        "model",
        "parameters",
        "not zero",
        "bytes",
        "MACs",
        f"p50 ms, batch {batch}",
        "examples/s",
        "times faster",
    ]
    rows: list[list[object]] = []
    for result in results:
        size, timing, speed = result.size, result.row(batch), result.speedup(batch)
        rows.append(
            [
                result.name,
                short(size.parameters if size else None),
                percent(size.nonzero / size.parameters) if size and size.parameters else "-",
                short(result.bytes, "B"),
                short(size.macs if size else None),
                number(timing.p50_ms if timing else None, 2),
                count(timing.examples_per_second if timing else None),
                number(speed, 2),
            ]
        )
    return grid(headings, rows)


def tiles(result: ResultValues) -> Markup | None:
    """Return the key figures of a compared result in large type."""
    comparison = result.comparison
    if comparison is None:
        return None
    speed, shrinkage = result.speedup(), result.shrinkage()
    retained = comparison.retention.value
    size, other = result.size, comparison.reference_size
    shown = [
        (percent(retained), f"of the reference's {comparison.metric} kept") if math.isfinite(retained) else None,
        (f"{speed:.1f}\u00d7", f"{_direction(speed, 'faster', 'slower')} at batch 1") if speed else None,
        (f"{shrinkage:.1f}\u00d7", f"{short(result.bytes, 'B')} of weights") if shrinkage else None,
        (f"{other.macs / size.macs:.1f}\u00d7", "fewer multiply-accumulates")
        if size and other and size.macs and other.macs
        else None,
        (
            percent(next(iter(comparison.agreement.values()))),
            f"same {next(iter(comparison.agreement))} as the reference",
        )
        if comparison.agreement
        else None,
    ]
    return element(
        "div",
        [element("div", element("b", tile[0]), element("span", tile[1]), class_="tile") for tile in shown if tile],
        class_="tiles",
    )


def _direction(ratio: float, more: str, less: str) -> str:
    return times(ratio, more, less).split()[-1]


def slices_table(parts: Sequence[Slice], group: str, reference: str | None) -> Markup | None:
    """Return scores of the parts of one group as bars; a tick marks the reference. Of many, only the weakest."""
    chosen = [part for part in parts if part.group == group]
    if not chosen:
        return None
    if len(chosen) > MOST_SLICES:
        chosen = sorted(chosen, key=lambda part: part.score)[:MOST_SLICES]
    headings = [group, "", "score", *([reference] if reference else []), "examples"]
    rows: list[list[object]] = []
    for part in chosen:
        mark = None if part.reference is None else element("u", style=f"left: {_share(part.reference)}%")
        bar = element("div", element("i", style=f"width: {_share(part.score)}%"), mark, class_="bar")
        other = [number(part.reference, 3)] if reference else []
        rows.append([part.name, bar, number(part.score, 3), *other, count(part.examples)])
    return grid(headings, rows, words=(0, 1))


def _share(value: float) -> str:
    return f"{100 * min(max(value, 0.0), 1.0):.2f}" if math.isfinite(value) else "0"


def heat_map(confusion: Confusion) -> Markup | None:
    """Return the confusion table, shaded by the root of the share of the true label, hits apart from misses."""
    if not confusion.labels:
        return None
    labels = [plain(label, LONGEST_HEADING) for label in confusion.labels]
    upright = len(labels) > 6 or max(len(label) for label in labels) > 10
    columns = [
        element("th", element("span", short_name) if upright else short_name, title=plain(label), scope="col")
        for label, short_name in zip(confusion.labels, labels, strict=True)
    ]
    rows = []
    for place, counts in enumerate(confusion.counts):
        total = sum(counts) or 1
        cells = [
            element(
                "td",
                cell,
                class_="none" if not cell else "hit" if column == place else "miss",
                style=f"--v: {math.sqrt(cell / total):.3f}",
            )
            for column, cell in enumerate(counts)
        ]
        heading = element("th", labels[place], title=plain(confusion.labels[place]), scope="row")
        rows.append(element("tr", heading, cells))
    head = element("thead", element("tr", element("th"), columns))
    table = element("table", head, element("tbody", rows), class_="heat")
    return element("div", table, class_="scroll")


def mistakes_table(confusion: Confusion) -> Markup | None:
    """Return the most frequent mistakes."""
    return grid(["true label", "answered", "examples"], confusion.pairs, words=(0, 1)) if confusion.pairs else None


def latency_table(results: Sequence[ResultValues]) -> Markup | None:
    """Return every timing, repeats of a reference that was timed with several models left out."""
    rows, seen = [], set()
    for result in results:
        for row in result.latency:
            key = (row.name, row.batch, row.lengths)
            if key in seen:
                continue
            seen.add(key)
            rates = [count(row.examples_per_second), count(row.tokens_per_second), count(row.rounds)]
            timings = [number(value, 2) for value in (row.p50_ms, row.p95_ms, row.p99_ms)]
            rows.append([row.name, str(row.lengths), row.batch, *timings, *rates])
    headings = ["model", "lengths", "batch", "p50 ms", "p95 ms", "p99 ms", "examples/s", "tokens/s", "rounds"]
    return grid(headings, rows) if rows else None


def lineage_table(lineage: Sequence[Mapping[str, Any]]) -> Markup:
    """Return the steps that made the model: a chain of names, then a table with settings, sizes and facts."""
    names = [f"{record.get('technique', '?')}" for record in lineage]
    chain: list[object] = [element("span", "source")]
    for name in names:
        chain += ["\u2192", element("span", name)]
    headings = ["step", "settings", "parameters", "bytes", "MACs", "seconds", "seed", "facts"]
    rows = [
        [
            f"{place}. {record.get('technique', '?')} v{record.get('version', '?')}",
            listed(record.get("config")),
            *(_change(record, key, "B" if key == "bytes" else "") for key in SIZES),
            number(record.get("seconds"), 1),
            str(record.get("seed", "-")),
            listed(record.get("facts")),
        ]
        for place, record in enumerate(lineage, start=1)
    ]
    return element("div", element("div", chain, class_="chain"), grid(headings, rows, words=(0, 1, 7)))


def listed(values: Any, longest: int = 300) -> str:
    """Return settings or facts as ``key value`` pairs; of long lists only how many entries they have."""
    if not isinstance(values, Mapping):
        return "-"
    return plain(", ".join(f"{key} {_said(value)}" for key, value in values.items()), longest) or "-"


def _said(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return f"({listed(value)})" if value else "none"
    if isinstance(value, list | tuple) and (
        len(value) > MOST_LISTED or any(isinstance(part, Mapping) for part in value)
    ):
        return f"({len(value)} entries)"
    return "none" if value is None else str(value)


def _change(record: Mapping[str, Any], key: str, unit: str) -> str:
    sizes = [(record.get(side) or {}).get(key) for side in ("size_before", "size_after")]
    before, after = (short(size, unit) for size in sizes)
    return before if before == after else f"{before} \u2192 {after}"
