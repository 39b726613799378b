"""What perturbed texts come to, in words."""

from __future__ import annotations

from collections.abc import Sequence

from eval.proof.paired_statistics import Interval
from eval.stress.stress_rows import Stressed

MOST_BEHIND = 0.02
"""Points that a model may be behind its reference, or further behind than on clean texts, before a report says so."""


def stress_sentences(rows: Sequence[Stressed], model: str, reference: str) -> list[str]:
    """Return under which rules the model is behind or falls further behind, then how to read the rows without scores.

    No sentence has a full stop.

    Args:
        rows: The clean texts, then the rules; without any nothing is said.
        model: Its name.
        reference: Name of its reference.
    """
    if not rows:
        return []
    points = f"{100 * MOST_BEHIND:g} points"
    said = [
        f"Under {row.rule} {model} falls {-100 * row.further.value:.1f} points further behind {reference} than on "
        f"clean texts{_chance(row.further)}"
        for row in rows
        if row.further is not None and row.further.value < -MOST_BEHIND
    ]
    if not said:
        said = [f"Under no rule does {model} fall more than {points} further behind {reference} than on clean texts"]
    behind = [
        f"{row.rule} ({-100 * row.difference.value:.1f})"
        for row in rows
        if row.difference is not None and row.difference.value < -MOST_BEHIND
    ]
    if behind:
        said.append(f"{model} is more than {points} behind {reference} under {', '.join(behind)}")
    unscored = [row.rule for row in rows if row.score is None]
    if unscored:
        said.append(f"Of {', '.join(unscored)} only the agreement is told: the truth of a text may turn with it")
    return said


def _chance(found: Interval) -> str:
    said = f" (95% interval {100 * found.low:+.1f} to {100 * found.high:+.1f})"
    return said if found.high < 0 else f"{said}, which may be chance"
