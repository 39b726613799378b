"""One self-contained HTML page: everything inline, nothing fetched, no script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.errors import UserError
from eval.files.writing import write_beside
from eval.report.markup import Markup, data_uri, element, plain
from eval.report.style import STYLE
from eval.report.summary import count, headline, verdict, with_reference
from eval.report.tables import (
    MOST_SLICES,
    cost_table,
    heat_map,
    latency_table,
    lineage_table,
    mistakes_table,
    pill,
    quality_table,
    slices_table,
    tiles,
)
from eval.result_values import ResultValues

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
WIDE_FROM = 8
"""Labels from which the confusion table gets the full width."""


def write_page(
    path: str | Path,
    title: str,
    results: Sequence[ResultValues],
    curves: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    lineage: Sequence[Mapping[str, Any]] = (),
    notes: Sequence[str] = (),
) -> Path:
    """Write a report that opens in any browser, without a network, in light or dark.

    Args:
        path: The HTML file.
        title: Heading.
        results: What ``measure`` returned, at least one; a reference whose figures they hold gets its own row.
        curves: Training histories by name: ``{"step", "loss", "score", "agreement", "seconds"}`` each.
        lineage: Records of the steps, as plain values: technique, version, config, facts, size_before, size_after,
            seconds, seed.
        notes: Paragraphs at the end.

    Raises:
        UserError: There is no result.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_beside(path, page(title, results, curves, lineage, notes).encode())
    return path


def page(
    title: str,
    results: Sequence[ResultValues],
    curves: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    lineage: Sequence[Mapping[str, Any]] = (),
    notes: Sequence[str] = (),
) -> str:
    """Return the text of the page; arguments as for ``write_page``."""
    if not results:
        raise UserError("report: there is no result to show; measure a model first")
    rows = with_reference(results)
    sections = [
        _header(title, results[0]),
        _verdicts(results),
        _section("Scores", quality_table(rows)),
        _section("Cost", cost_table(rows)),
        _section("Trade-off", _tradeoffs(rows)),
        _section("Training", _training(curves or {})),
        _section("Where it is right", [_parts(result, first=result is results[0]) for result in results]),
        _section("Latency", latency_table(results)),
        _section("How it was made", lineage_table(lineage) if lineage else None),
        _section("Notes", [element("p", plain(note, 2000)) for note in notes]),
        _section("Machine and data", _provenance(results[0])),
    ]
    return document(title, sections)


def document(title: str, sections: Sequence[object]) -> str:
    """Return a whole HTML page; nothing on it is fetched from anywhere."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Markup(STYLE)),
    )
    body = element("body", element("main", list(sections)))
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _section(title: str, *content: object) -> Markup | None:
    parts = [part for group in content for part in (group if isinstance(group, list) else [group]) if part]
    return element("section", element("h2", title), parts) if parts else None


def _header(title: str, result: ResultValues) -> Markup:
    facts = f"{result.task.kind}, {count(result.examples)} examples of {result.split}"
    source = f" of {result.source}" if result.source else ""
    when = result.created.replace("T", " ").replace("+00:00", " UTC")
    return element("header", element("h1", title), element("p", f"{facts}{source}, {when}", class_="muted"))


def _verdicts(results: Sequence[ResultValues]) -> list[Markup]:
    """Return the first compared result in large type, the others a line each."""
    compared = [result for result in results if result.comparison]
    if not compared:
        return [element("section", element("p", headline(results[0]) + ".", class_="lead"))]
    first, *others = compared
    said = element("div", pill(first), element("span", verdict(first) + "."), class_="verdict")
    parts = [element("section", element("p", headline(first) + ".", class_="lead"), said, tiles(first))]
    if others:
        lines = [
            element("div", pill(other), element("span", headline(other) + "."), class_="verdict") for other in others
        ]
        parts.append(element("section", element("h2", "Also measured"), lines))
    return parts


def _tradeoffs(results: Sequence[ResultValues]) -> Markup | None:
    from eval.report.plots import Point, tradeoff

    points, floor, reference = [], None, None
    for result in results:
        comparison, low, high = result.comparison, None, None
        if comparison is not None:
            reference = comparison.reference
            base = comparison.reference_scores.get(comparison.metric, result.score - comparison.difference.value)
            low, high = base + comparison.difference.low, base + comparison.difference.high
            floor = base - comparison.margin
        points.append((result, low, high))
    metric, figures = results[0].metric, []
    costs = (
        ("megabytes of weights", 1e6, {result.name: result.bytes for result in results}),
        ("milliseconds, batch 1", 1.0, {row.name: row.p50_ms for result in results for row in result.latency[::-1]}),
    )
    for label, unit, cost in costs:
        drawn = [
            Point(result.name, float(found), result.score, low, high, result.name == reference)
            for result, low, high in points
            if (found := cost.get(result.name)) and result.score == result.score
        ]
        if len(drawn) > 1:
            caption = f"{metric} against {label}; bars are intervals of the difference, the ring is the reference"
            figures.append(_figure(tradeoff(drawn, label, metric, unit, floor), caption))
    return element("div", figures, class_="plots") if figures else None


def _training(curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> Markup | None:
    from eval.report.plots import training_curves

    known = {name: [row for row in run if row.get("step") is not None] for name, run in curves.items()}
    figures = [
        _figure(training_curves(known, key), f"{said} by optimizer step")
        for key, said in (
            ("loss", "Training loss"),
            ("score", "Validation score"),
            ("agreement", "Agreement with the teacher"),
        )
        if any(row.get(key) is not None for run in known.values() for row in run)
    ]
    return element("div", figures, class_="plots") if figures else None


def _figure(draw: Any, caption: str) -> Markup:
    from eval.report.plots import darkened, render

    light = render(draw)
    picture = element(
        "picture",
        element("source", media="(prefers-color-scheme: dark)", srcset=data_uri(darkened(light))),
        element("img", src=data_uri(light), alt=plain(caption)),
    )
    return element("figure", picture, element("figcaption", caption))


def _parts(result: ResultValues, first: bool) -> Markup | None:
    reference = result.comparison.reference if result.comparison else None
    confusion = result.confusion
    mistakes = mistakes_table(confusion) if confusion else None
    labels = sum(part.group == "label" for part in result.slices)
    weakest = f", the {MOST_SLICES} weakest of {labels}" if labels > MOST_SLICES else ""
    wide = "wide" if confusion and len(confusion.labels) > WIDE_FROM else None
    tables = [
        (
            f"By label: share of its examples that are right{weakest}",
            slices_table(result.slices, "label", reference),
            None,
        ),
        ("By type of entity", slices_table(result.slices, "entity", reference), None),
        ("By length in tokens", slices_table(result.slices, "tokens", reference), None),
        ("True label (rows) and answer (columns)", heat_map(confusion) if confusion else None, wide),
        ("Most frequent mistakes", mistakes, None),
    ]
    shown = [element("div", element("h3", title), table, class_=kind) for title, table, kind in tables if table]
    if not shown:
        return None
    content = element("div", shown, class_="two")
    return element("details", element("summary", result.name), content, open="" if first else None)


def _provenance(result: ResultValues) -> Markup:
    machine = result.machine
    memory = machine.get("memory_bytes")
    versions = ", ".join(f"{name} {version}" for name, version in machine.get("versions", {}).items())
    facts = {
        "processor": f"{machine.get('cpu', '-')}, {machine.get('usable_cores', '-')} cores usable",
        "instructions": ", ".join(machine.get("features", [])) or "-",
        "8-bit products": machine.get("int8", "-"),
        "memory": f"{memory / 2**30:.0f} GiB" if memory else "-",
        "accelerator": machine.get("gpu") or "none",
        "system": f"{machine.get('system', '-')}, Python {machine.get('python', '-')}",
        "versions": versions or "-",
        "data": f"{result.source or '-'}, {result.split}, sha256 {result.digest[:16]}",
        "resampling seed": str(result.seed),
    }
    return element("dl", [[element("dt", name), element("dd", value)] for name, value in facts.items()])
