"""What perturbed texts come to, in words."""

from __future__ import annotations

from collections.abc import Sequence

from eval.proof.paired_statistics import Interval
from eval.stress.stress_rows import Stressed

MOST_FURTHER = 0.02
"""Points that a model may fall further behind its reference than on clean texts, before a report says so."""


def stress_sentences(rows: Sequence[Stressed], model: str, reference: str) -> list[str]:
    """Return which rules let the model fall further behind, then how to read the rows without scores; no full stop.

    Args:
        rows: The clean texts, then the rules; without any nothing is said.
        model: Its name.
        reference: Name of its reference.
    """
    if not rows:
        return []
    points = f"{100 * MOST_FURTHER:g} points"
    said = [
        f"Under {row.rule} {model} falls {-100 * row.further.value:.1f} points further behind {reference} than on "
        f"clean texts{_chance(row.further)}"
        for row in rows
        if row.further is not None and row.further.value < -MOST_FURTHER
    ]
    if not said:
        said = [f"Under no rule does {model} fall more than {points} further behind {reference} than on clean texts"]
    unscored = [row.rule for row in rows if row.score is None]
    if unscored:
        said.append(f"Of {', '.join(unscored)} only the agreement is told: the truth of a text may turn with it")
    return said


def _chance(found: Interval) -> str:
    said = f" (95% interval {100 * found.low:+.1f} to {100 * found.high:+.1f})"
    return said if found.high < 0 else f"{said}, which may be chance"
