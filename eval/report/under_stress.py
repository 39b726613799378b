"""Answers to perturbed texts in words and as rows: what console, page and card show of ``eval.stress``."""

from __future__ import annotations

from eval.proof.paired_statistics import Interval
from eval.report.summary import count, number, percent, signed, with_interval
from eval.result_values import ResultValues

MOST_FURTHER = 0.02
"""Points that a model may fall further behind its reference than on clean texts, before a report says so."""


def stress_headings(result: ResultValues) -> list[str]:
    """Return the headings of the columns; the first holds words, the others figures."""
    reference = result.comparison.reference if result.comparison else "reference"
    names = (reference, result.name, "difference [95% interval]", "further than clean [95% interval]", "agreement")
    return ["texts", "changed", *names]


def stress_rows(result: ResultValues) -> list[list[str]]:
    """Return the cells of each row, the clean texts first."""
    return [
        [
            row.rule,
            f"{count(row.changed)} of {count(row.examples)}",
            number(row.reference),
            number(row.score),
            _interval(row.difference),
            _interval(row.further),
            ", ".join(f"{percent(share)} {name}" for name, share in (row.agreement or {}).items()),
        ]
        for row in result.stress
    ]


def stress_sentences(result: ResultValues) -> list[str]:
    """Return which rules let the model fall further behind, then how to read the rows without scores; no full stop."""
    if not result.stress or result.comparison is None:
        return []
    reference, points = result.comparison.reference, f"{100 * MOST_FURTHER:g} points"
    behind = [row for row in result.stress if row.further is not None and row.further.value < -MOST_FURTHER]
    said = [
        f"Under {row.rule} {result.name} falls {_points(row.further)} further behind {reference} than on "
        f"clean texts{_chance(row.further)}"
        for row in behind
        if row.further is not None
    ]
    if not said:
        said = [
            f"Under no rule does {result.name} fall more than {points} further behind {reference} than on clean texts"
        ]
    unscored = [row.rule for row in result.stress if row.score is None]
    if unscored:
        said.append(f"Of {', '.join(unscored)} only the agreement is told: the truth of a text may turn with it")
    return said


def _points(found: Interval) -> str:
    return f"{-100 * found.value:.1f} points"


def _chance(found: Interval) -> str:
    said = f" (95% interval {signed(100 * found.low, 1)} to {signed(100 * found.high, 1)})"
    return said if found.high < 0 else f"{said}, which may be chance"


def _interval(found: Interval | None) -> str:
    return "-" if found is None else with_interval(found)
