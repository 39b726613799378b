"""The report of measured models as one self-contained HTML page: everything inline, nothing fetched."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.errors import UserError
from eval.examples import Example
from eval.files.writing import atomic_write
from eval.report.attributed import attribution_headings, attribution_rows, attribution_sentences
from eval.report.changed import Changed, changed
from eval.report.page_tables import (
    MOST_SLICES,
    Cell,
    Grid,
    HeatMap,
    chain,
    cost_table,
    errors_table,
    grid,
    heat_map,
    latency_table,
    lineage_table,
    pill,
    quality_table,
    slices_table,
    tiles,
)
from eval.report.pictures import Picture, picture
from eval.report.plots import Point, loss_by_step, tradeoff, training_curves
from eval.report.summary import (
    count,
    family,
    headline,
    role_sentences,
    search_sentences,
    shipped,
    verdict,
    with_reference,
)
from eval.report.templating import render_template
from eval.report.under_stress import sentences_of, stress_headings, stress_rows
from eval.result_values import ResultValues


@dataclass(frozen=True)
class Line:
    """A sentence about a result, with its verdict before it."""

    verdict: Cell
    text: str


@dataclass(frozen=True)
class Part:
    """Where a result is right and where it is wrong.

    Attributes:
        name: Of the model.
        open: Whether the page shows it unfolded.
        tables: Scores of parts of the data, each with its caption.
        confusion: True labels by predicted labels.
        errors: The most frequent errors.
    """

    name: str
    open: bool
    tables: tuple[tuple[str, Grid], ...]
    confusion: HeatMap | None
    errors: Grid | None


def write_page(
    path: str | Path,
    title: str,
    results: Sequence[ResultValues],
    curves: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    lineage: Sequence[Mapping[str, Any]] = (),
    notes: Sequence[str] = (),
    *,
    exports: Collection[str] = (),
    examples: Sequence[Example] | None = None,
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
        exports: Names of the results that are exports of the model (see ``eval.report.summary.shipped``).
        examples: What was measured on; the page quotes some of those that are answered otherwise.

    Raises:
        UserError: There is no result.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = page(title, results, curves, lineage, notes, exports=exports, examples=examples)
    atomic_write(path, text.encode())
    return path


def page(
    title: str,
    results: Sequence[ResultValues],
    curves: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    lineage: Sequence[Mapping[str, Any]] = (),
    notes: Sequence[str] = (),
    *,
    exports: Collection[str] = (),
    examples: Sequence[Example] | None = None,
) -> str:
    """Return the text of the page; arguments as for ``write_page``."""
    if not results:
        raise UserError("report: there is no result to show; measure a model first")
    rows = with_reference(results)
    compared = [result for result in results if result.comparison]
    leading = shipped(results, exports) or results[0]
    return render_template(
        "result_page.html.j2",
        title=title,
        about=_about(results[0]),
        roles=[*role_sentences(results), *search_sentences(results)],
        headline=headline(leading),
        verdict=Line(pill(leading), verdict(leading)) if compared else None,
        tiles=tiles(leading),
        others=[Line(pill(other), headline(other)) for other in compared if other is not leading],
        family=family(results),
        quality=quality_table(rows),
        cost=cost_table(rows),
        changed=_changed(leading, results, examples),
        stress=[
            (sentences_of(one), grid(stress_headings(one), stress_rows(one.stress), words=(0, 6)))
            for one in results
            if one.stress
        ],
        attributions=[
            (attribution_sentences(one), grid(attribution_headings(one), attribution_rows(one)))
            for one in results
            if one.attributions
        ],
        tradeoffs=_tradeoffs(rows, leading),
        curves=_curves(curves or {}),
        details=list(filter(None, (_part(result, first=result is leading) for result in results))),
        latency=latency_table(results),
        chain=chain(lineage),
        lineage=lineage_table(lineage) if lineage else None,
        notes=notes,
        provenance=_provenance(results[0]),
    )


def _about(result: ResultValues) -> str:
    source = f" of {result.source}" if result.source else ""
    when = result.created.replace("T", " ").replace("+00:00", " UTC")
    return f"{result.task.kind}, {count(result.examples)} examples of {result.split}{source}, {when}"


def _changed(
    leading: ResultValues, results: Sequence[ResultValues], examples: Sequence[Example] | None
) -> Changed | None:
    """Return what the leading model answers otherwise than its reference, where the answers of both are known."""
    reference = None if leading.comparison is None else leading.comparison.reference
    kept = {one.name: one.kept for one in results if one.name in (leading.name, reference) and one.kept is not None}
    return changed(leading.task, kept, examples) if len(kept) == 2 else None


def _tradeoffs(results: Sequence[ResultValues], leading: ResultValues) -> list[Picture]:
    points, floor, reference = [], None, ""
    for result in results:
        comparison, low, high = result.comparison, None, None
        if comparison is not None:
            reference = comparison.reference
            base = comparison.reference_scores.get(comparison.metric, result.score - comparison.difference.value)
            low, high = base + comparison.difference.low, base + comparison.difference.high
            floor = None if comparison.verdict == "selection" else base - comparison.margin
        points.append((result, low, high))
    metric, pictures = results[0].metric, []
    costs = (
        ("megabytes of weights", 1e6, {result.name: result.bytes for result in results}),
        ("milliseconds, batch 1", 1.0, {row.name: row.p50_ms for result in results for row in result.latency[::-1]}),
    )
    for label, unit, cost in costs:
        drawn = [
            Point(
                result.name,
                float(found),
                result.score,
                low,
                high,
                reference=bool(reference) and result.name.split(", ")[0] == reference,
                shipped=result is leading,
            )
            for result, low, high in points
            if (found := cost.get(result.name)) and result.score == result.score
        ]
        if len(drawn) > 1:
            caption = (
                f"{metric} against {label}; bars are intervals of the difference, rings are "
                f"{reference or 'the reference'} and its own exports, the diamond is {leading.name}; the line joins "
                "what nothing beats in both"
            )
            pictures.append(picture(tradeoff(drawn, label, metric, unit, floor), caption))
    return pictures


def _curves(curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Picture]:
    """Return the losses of each training by itself, for they measure different things, and the scores together."""
    known = {name: [row for row in run if row.get("step") is not None] for name, run in curves.items()}
    losses = {name: loss_by_step(run) for name, run in known.items()}
    drawn = [
        picture(training_curves({name: points}, "loss"), f"{name}: training loss by optimizer step")
        for name, points in losses.items()
        if points
    ]
    return drawn + [
        picture(training_curves(known, key), f"{said} by optimizer step")
        for key, said in (("score", "Score on the examples that choose"), ("agreement", "Agreement with the teacher"))
        if any(row.get(key) is not None for run in known.values() for row in run)
    ]


def _part(result: ResultValues, first: bool) -> Part | None:
    reference = result.comparison.reference if result.comparison else None
    labels = sum(part.group == "label" for part in result.slices)
    weakest = f", the {MOST_SLICES} weakest of {labels}" if labels > MOST_SLICES else ""
    captions = {
        "label": f"By label: share of its examples that are right{weakest}",
        "entity": "By type of entity",
        "tokens": "By length in tokens",
    }
    found = ((caption, slices_table(result.slices, group, reference)) for group, caption in captions.items())
    tables = tuple((caption, table) for caption, table in found if table)
    confusion = heat_map(result.confusion) if result.confusion else None
    errors = errors_table(result.confusion) if result.confusion else None
    return Part(result.name, first, tables, confusion, errors) if tables or confusion or errors else None


def _provenance(result: ResultValues) -> dict[str, str]:
    machine = result.machine
    memory = machine.get("memory_bytes")
    versions = ", ".join(f"{name} {version}" for name, version in machine.get("versions", {}).items())
    return {
        "processor": f"{machine.get('cpu', '-')}, {machine.get('usable_cores', '-')} cores usable",
        "instructions": ", ".join(machine.get("features", [])) or "-",
        "8-bit products": machine.get("int8", "-"),
        "memory": f"{memory / 2**30:.0f} GiB" if memory else "-",
        "accelerator": machine.get("gpu") or "none",
        "system": f"{machine.get('system', '-')}, Python {machine.get('python', '-')}",
        "versions": versions or "-",
        "data": f"{result.source or '-'}, {result.split}, sha256 {result.digest[:16]}",
        "comparison seed": str(result.seed),
    }
