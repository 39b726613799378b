"""How alike two models weigh the words of a text, in words and as rows: what console, page and card show of it."""

from __future__ import annotations

from eval.attribution.agreement_rows import RANDOM, AttributionRow
from eval.proof.paired_statistics import Interval
from eval.report.summary import count, number, percent
from eval.result_values import ResultValues

MOST_INCOMPLETE = 0.05
"""Share of what is explained that attributions may miss before a report says so."""
ATTRIBUTION_HEADINGS = (
    "attributions",
    "texts",
    "rank correlation [95% interval]",
    "minus random order [95% interval]",
    "common top {by} [95% interval]",
)


def attribution_headings(result: ResultValues) -> list[str]:
    """Return the headings of the columns; the first holds words, the others figures."""
    by = result.attributions.by if result.attributions else "tokens"
    return [heading.format(by=by) for heading in ATTRIBUTION_HEADINGS]


def attribution_rows(result: ResultValues) -> list[list[str]]:
    """Return the cells of each row, that of random order last."""
    return [
        [
            row.method,
            count(row.texts),
            _ranged(row.correlation),
            "-" if row.beyond is None else _ranged(row.beyond),
            _ranged(row.overlap),
        ]
        for row in (result.attributions.rows if result.attributions else ())
    ]


def attribution_sentences(result: ResultValues) -> list[str]:
    """Return how alike the two models weigh the words of a text, then what could not be compared; no full stops."""
    found, comparison = result.attributions, result.comparison
    if found is None or comparison is None:
        return []
    said = [_said(row, result.name, comparison.reference, found.by) for row in found.rows if row.method != RANDOM] or [
        f"No text of {count(found.examples)} is long enough to compare attributions"
    ]
    said += [
        f"The sums of {row.method} miss {percent(row.incomplete)} of the difference that they explain: they are rough"
        for row in found.rows
        if row.incomplete is not None and row.incomplete > MOST_INCOMPLETE
    ]
    return [*said, *found.left_out]


def _said(row: AttributionRow, model: str, reference: str, by: str) -> str:
    found = f"rank correlation {number(row.correlation.value, 2)}"
    if row.beyond is not None and row.beyond.low > 0:
        return f"By {row.method}, {model} weighs the {by} of a text like {reference}: {found}; random order has about 0"
    return f"By {row.method}, that {model} and {reference} weigh the {by} of a text alike is not established: {found}"


def _ranged(found: Interval) -> str:
    return f"{number(found.value, 3)} [{number(found.low, 3)}, {number(found.high, 3)}]"
