"""Several runs on one self-contained HTML page: figures, trade-offs, settings, and answers that differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from eval.files.writing import atomic_write
from eval.report.page_tables import Cell, Grid, grid, pill
from eval.report.pictures import Picture, picture
from eval.report.plots import Point, tradeoff
from eval.report.runs import MILLISECONDS, Group, RunFigures, cells, eager_speed, headings
from eval.report.templating import render_template


def write_runs_page(
    path: Path, groups: Sequence[Group], settings: Mapping[str, Sequence[str]], notes: Sequence[str] = ()
) -> None:
    """Write the page of ``compress compare``.

    Args:
        path: The HTML file.
        groups: What ``grouped`` returned.
        settings: The settings that differ -> the value in each run, in the order of the groups.
        notes: Sentences at the top.
    """
    names = [run.name for group in groups for run in group.runs]
    text = render_template(
        "runs_page.html.j2",
        title=f"{len(names)} runs",
        notes=notes,
        groups=[
            {
                "title": group.title,
                "table": _figures(group),
                "plots": _tradeoffs(group),
                "changed": group.changed,
                "notes": group.notes,
                "best": f"No other run beats {', '.join(group.best)} in both score and {group.ranked_by}",
            }
            for group in groups
        ],
        settings=_settings(names, settings) if settings else None,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, text.encode())


def _figures(group: Group) -> Grid:
    titles = [*headings([group]), "speedup over eager torch"]
    return grid(titles, map(_row, group.runs), words=(0, 1), sortable=True)


def _row(run: RunFigures) -> list[Cell | str]:
    name, ships, score, difference, _, size, milliseconds, speed = cells(run)
    result, (eager, interval) = run.result, eager_speed(run)
    value, _, ends = difference.partition(" ")
    gained = result.comparison.difference.value if result.comparison else None
    return [
        name,
        ships,
        Cell(score, value=result.score),
        Cell(value, ends, value=gained),
        pill(result),
        Cell(size, value=result.bytes),
        Cell(milliseconds, value=run.milliseconds),
        speed,
        Cell(eager, interval),
    ]


def _tradeoffs(group: Group) -> list[Picture]:
    pictures, metric, floor = [], group.first.metric, None
    if (compared := group.first.comparison) is not None and compared.verdict != "selection":
        floor = compared.reference_scores.get(metric, group.first.score - compared.difference.value) - compared.margin
    baselines = group.runs[0].baselines
    rows: dict[str, float | None] = {row.name: row.p50_ms for one in (*baselines, group.first) for row in one.latency}
    weights: dict[str, float | None] = {one.name: one.bytes for one in baselines}
    sizes: list[float | None] = [run.result.bytes for run in group.runs]
    costs = [("megabytes of weights", 1e6, weights, sizes)]
    if group.ranked_by == MILLISECONDS:
        costs.append(("milliseconds, batch 1", 1.0, rows, [run.milliseconds for run in group.runs]))
    for label, unit, known, own in costs:
        points = [
            Point(one.name, float(found), one.score, reference=True)
            for one in baselines
            if (found := known.get(one.name))
        ]
        points += [
            Point(run.name, float(found), run.result.score, shipped=run.name in group.best)
            for run, found in zip(group.runs, own, strict=True)
            if found
        ]
        if len(points) > 1:
            caption = f"{metric} against {label}; rings are the teacher and its own exports, diamonds no run beats"
            pictures.append(picture(tradeoff(points, label, metric, unit, floor), caption))
    return pictures


def _settings(names: Sequence[str], settings: Mapping[str, Sequence[str]]) -> Grid:
    rows: list[list[Cell | str]] = [[path, *map(Cell, values)] for path, values in settings.items()]
    return grid(["setting", *names], rows, words=range(1, len(names) + 1))
