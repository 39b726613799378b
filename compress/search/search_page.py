"""What a search says of itself: ``search.html`` with the front and why candidates fell, and all of it as JSON."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compress.search.standing import Standing, Winner, front, nearest, ranked
from eval.errors import quantity
from eval.files.writing import atomic_write
from eval.proof.many_comparisons import holm
from eval.report.page_tables import Cell, Grid, grid
from eval.report.pictures import Picture, picture
from eval.report.plots import Point, tradeoff
from eval.report.summary import count, number, short, signed
from eval.report.templating import render_template

if TYPE_CHECKING:
    from compress.search.budget import Budget
    from eval.result import Result

PAGE, FILE = "search.html", "search.json"
HOME = "compress.search"
"""Package of the template."""
MOST_REASONS = 40
"""Candidates that fell by their cost and that the page lists; the file has them all."""


def write_page(
    out: Path,
    budget: Budget,
    teacher: Result,
    standings: Sequence[Standing],
    seconds: float,
    looked_at: Sequence[Winner] = (),
    *,
    ended: bool = False,
) -> Path:
    """Write the page and the file.

    Args:
        out: Folder of the search.
        budget: What is searched for.
        teacher: Measured on the examples that choose.
        standings: Every candidate.
        seconds: Spent on all of them.
        looked_at: The winners.
        ended: Whether the search is over.

    Returns:
        The page.
    """
    facts = search_facts(out, budget, teacher, standings, seconds, looked_at, ended=ended)
    atomic_write(out / FILE, (json.dumps(facts, indent=1, ensure_ascii=False) + "\n").encode())
    trained = [one for one in standings if one.difference is not None]
    dropped = [one for one in standings if one.dropped]
    page = render_template(
        "search_page.html.j2",
        HOME,
        title=budget.name,
        about=f"{teacher.task.kind}, compared on {count(teacher.examples)} examples of {teacher.split}",
        outcome=facts["outcome"],
        limits=[str(limit) for limit in budget.limits],
        optimise=", ".join(budget.optimise),
        spent=facts["spent"],
        pictures=_pictures(budget, teacher, trained),
        front=_table(front(standings, budget), budget),
        trained=_table(ranked(trained, budget), budget),
        dropped=grid(
            ("candidate", "what it is", "why it was not trained"),
            [(one.key, one.label, one.dropped) for one in dropped[:MOST_REASONS]],
            words=(0, 1, 2),
        ),
        reasons=_reasons(dropped),
        others=max(0, len(dropped) - MOST_REASONS),
    )
    atomic_write(out / PAGE, page.encode())
    return out / PAGE


def search_facts(
    out: Path,
    budget: Budget,
    teacher: Result,
    standings: Sequence[Standing],
    seconds: float,
    looked_at: Sequence[Winner],
    *,
    ended: bool,
) -> dict[str, Any]:
    """Return everything as plain values."""
    trained = sum(one.difference is not None for one in standings)
    near = None if looked_at or not ended else nearest(standings, budget)
    return {
        "budget": budget.plain(),
        "ended": ended,
        "teacher": {"score": teacher.score, "metric": teacher.metric, "split": teacher.split, "digest": teacher.digest},
        "outcome": _outcome(budget, standings, looked_at, near, ended=ended),
        "seconds": round(seconds, 1),
        "spent": f"{quantity(len(standings), 'candidate')}, {trained:,} of them trained, "
        f"{seconds / 3600:.2f} hours of training",
        "front": [one.key for one in front(standings, budget)],
        "winners": [
            {
                "key": one.standing.key,
                "folder": str(one.folder.relative_to(out)),
                "certificate": None if one.certificate is None else str(one.certificate.relative_to(out)),
                "said": one.said,
                **final,
            }
            for one, final in zip(looked_at, finals(looked_at), strict=True)
        ],
        "nearest": None if near is None else near.key,
        "candidates": [_plain(one, budget) for one in standings],
    }


def shown_cost(what: str, standing: Standing) -> str:
    """Return a cost as people read it, with its name."""
    value = standing.cost(what)
    if not math.isfinite(value):
        return "-"
    if what == "p50_ms":
        least = "at least " if standing.costs.get("at_least") else ""
        return f"{least}{value:.2f} ms"
    return short(round(value), "B") if what == "bytes" else f"{short(round(value))} {what}"


def fate(one: Standing, budget: Budget, kept: Sequence[str]) -> str:
    """Return what became of a candidate, and why."""
    if one.dropped:
        return one.dropped
    share = f"{budget.shares[one.rung]:.0%} of the optimizer steps"
    if one.state == "running":
        return f"in training for {share}"
    beyond = [
        f"{name} beyond the limit" for name, value in one.violations(budget).items() if value > 0 and name != "loss"
    ]
    if beyond:
        return ", ".join(beyond)
    if one.violations(budget).get("loss", 0) > 0:
        return f"ruled out after {share}: even the upper end of the interval loses too much"
    if one.rung < len(budget.shares) - 1:
        return f"not trained further: others were better after {share}, or the hours were over"
    return "trained to the end" + (", on the front" if one.key in kept else ", another is better in everything")


def _plain(one: Standing, budget: Budget) -> dict[str, Any]:
    values = asdict(one)
    share = budget.shares[one.rung] if one.difference is not None else 0.0
    return {**values, "share": share, "role": "selection"}


def finals(looked_at: Sequence[Winner]) -> list[dict[str, Any]]:
    """Return what each winner scored on the examples that report; of several winners, corrected by Holm's method.

    A verdict of several holds for the whole family: where the corrected p-value no longer shows the margin, neither
    does the verdict.
    """
    found = [_final(one) for one in looked_at]
    if len(found) < 2:
        return found
    for one, corrected in zip(found, holm([winner.p_value for winner in looked_at]), strict=True):
        if one.get("p_value") is None:
            continue
        one["p_value_corrected"] = corrected
        if one["verdict"] == "non-inferior" and corrected >= (1 - one["confidence"]) / 2:
            one["verdict"] = "not shown"
    return found


def _final(winner: Winner) -> dict[str, Any]:
    """Return what the export of a winner scored."""
    found = winner.result
    if found is None or found.comparison is None:
        return {}
    comparison = found.comparison
    return {
        "model": found.name,
        "split": found.split,
        "role": found.role,
        "examples": found.examples,
        "score": found.score,
        "verdict": comparison.verdict,
        "confidence": comparison.confidence,
        "difference": [comparison.difference.value, comparison.difference.low, comparison.difference.high],
        "p_value": comparison.noninferiority_p,
        "examples_needed": comparison.examples_needed,
    }


def _outcome(
    budget: Budget, standings: Sequence[Standing], looked_at: Sequence[Winner], near: Standing | None, *, ended: bool
) -> list[str]:
    """Return what the search came to, in sentences."""
    if not ended:
        return ["The search is under way."]
    if looked_at:
        told = [_told(one.standing, final, budget) for one, final in zip(looked_at, finals(looked_at), strict=True)]
        return [*told, *(f"{one.standing.key}: {one.said.removesuffix('.')}." for one in looked_at if one.said)]
    if near is None:
        return ["Nothing meets the budget, and no candidate was cheap enough to be trained."]
    last = near.rung == len(budget.shares) - 1
    trained = (
        "to the end" if last else f"for {budget.shares[near.rung]:.0%} of the optimizer steps, as the hours allowed"
    )
    missed = [
        f"{shown_cost(limit.what, near)} (allowed is {limit})"
        for limit in budget.limits
        if limit.what in near.costs and near.violations(budget).get(limit.what, 0) > 0
    ]
    return [
        f"Nothing meets the budget. The nearest is {near.key} ({near.label}), trained {trained}: "
        + ", ".join([*missed, f"{near.told} to the teacher (allowed is {budget.limit('loss') or 'any loss'})"])
        + "."
    ]


def _told(one: Standing, found: dict[str, Any], budget: Budget) -> str:
    """Return what a winner costs, and what it scored on the examples that report."""
    costs = [shown_cost("bytes", one), *([shown_cost("p50_ms", one)] if budget.times else [])]
    said = f"{one.key} ({one.label}) is within the budget: {', '.join(costs)}"
    if not found:
        return f"{said}."
    value, low, high = found["difference"]
    score = f"its score is {number(found['score'])}, {signed(value)} [{signed(low)}, {signed(high)}] to the teacher"
    said += f". On {count(found['examples'])} examples of {found['split']} {score}: {found['verdict']}"
    if "p_value_corrected" in found:
        said += f" (p = {found['p_value_corrected']:.3g} by Holm's method for all winners)"
    if found["verdict"] == "not shown" and found["examples_needed"]:
        said += f"; {count(found['examples_needed'])} examples would be needed to show the margin"
    return f"{said}."


def _table(standings: Sequence[Standing], budget: Budget) -> Grid:
    kept = [one.key for one in front(standings, budget)]
    headings = ["candidate", "what it is", "score", "difference, 95% interval", "bytes", "MACs"]
    headings += ["p50 ms"] if budget.times else []
    headings += ["trained for", "what became of it"]
    rows = []
    for one in standings:
        cells: list[Cell | str] = [
            one.key,
            one.label,
            number(one.score),
            one.told,
            short(round(one.cost("bytes")), "B"),
            short(round(one.cost("macs"))),
        ]
        cells += [f"{one.cost('p50_ms'):.2f}"] if budget.times else []
        rows.append([*cells, f"{budget.shares[one.rung]:.0%}", fate(one, budget, kept)])
    return grid(headings, rows, words=(0, 1, len(headings) - 1))


def _reasons(dropped: Sequence[Standing]) -> list[str]:
    """Return how many candidates fell by what, the commonest first."""
    found = Counter(
        "impossible by the techniques' own rules"
        if one.dropped.startswith("impossible")
        else part.partition("allowed is ")[2] or part
        for one in dropped
        for part in one.dropped.split("; ")[:1]
    )
    return [f"{times:,} by {reason}" for reason, times in found.most_common(10)]


def _pictures(budget: Budget, teacher: Result, trained: Sequence[Standing]) -> list[Picture]:
    """Draw score with interval against bytes, and milliseconds, of what was trained the furthest, with the floor."""
    last = max((one.rung for one in trained), default=0)
    shown = [one for one in trained if one.rung == last and one.difference is not None]
    costs = [
        ("bytes", "megabytes of the export", 1e6),
        *([("p50_ms", "milliseconds, median", 1.0)] if budget.times else []),
    ]
    pictures = []
    for name, label, unit in costs:
        points = [
            Point(one.key, one.cost(name), teacher.score + value, teacher.score + low, teacher.score + high)
            for one in shown
            if one.difference is not None
            for value, low, high in [one.difference]
        ]
        if points:
            share = f"after {budget.shares[last]:.0%} of the optimizer steps"
            bars = "bars are 95% intervals of the difference to the teacher"
            caption = f"{teacher.metric} against {label}, {share}; {bars}"
            drawn = tradeoff(points, label, teacher.metric, unit, teacher.score - budget.margin)
            pictures.append(picture(drawn, caption))
    return pictures
