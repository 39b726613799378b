"""Answers to perturbed texts in words and as rows: what console, page and card show of ``eval.stress``."""

from __future__ import annotations

from collections.abc import Sequence

from eval.proof.paired_statistics import Interval
from eval.report.summary import count, number, percent, with_interval
from eval.result_values import ResultValues
from eval.stress.stress_rows import Stressed
from eval.stress.stress_sentences import stress_sentences


def stress_headings(result: ResultValues) -> list[str]:
    """Return the headings of a result's columns (see ``headings_of``)."""
    return headings_of(result.name, result.comparison.reference if result.comparison else "reference")


def headings_of(model: str, reference: str) -> list[str]:
    """Return the headings of the columns; the first holds words, the others figures."""
    return [
        *("texts", "changed", reference, model),
        *("difference [95% interval]", "further than clean [95% interval]", "agreement"),
    ]


def stress_rows(rows: Sequence[Stressed]) -> list[list[str]]:
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
        for row in rows
    ]


def sentences_of(result: ResultValues) -> list[str]:
    """Return what its perturbed texts come to, in words (see ``eval.stress.stress_sentences``)."""
    return (
        [] if result.comparison is None else stress_sentences(result.stress, result.name, result.comparison.reference)
    )


def _interval(found: Interval | None) -> str:
    return "-" if found is None else with_interval(found)
