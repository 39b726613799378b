"""Results in words: the sentence at the top of a report, and numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from eval.proof.many_comparisons import holm
from eval.proof.paired_statistics import Interval
from eval.proof.power import power
from eval.report.plain_text import plain
from eval.report.speed import speed_sentence
from eval.result_values import Comparison, ResultValues

VERDICTS = {
    "non-inferior": "as good as {reference} within {margin}",
    "inferior": "worse than {reference} by more than {margin}",
    "not shown": "not shown to be within {margin} of {reference}",
    "selection": "chosen on these examples: no verdict against {reference}",
}
MOST_LISTED = 12
"""Entries up to which a list is written out."""


def headline(result: ResultValues) -> str:
    """Return the sentence that says what came out: score retained, speedup, size."""
    comparison = result.comparison
    if comparison is None:
        return f"{result.name}: {result.metric} {number(result.score)} on {count(result.examples)} examples"
    kept = comparison.retention
    if math.isfinite(kept.value):
        interval = f"{percent(comparison.confidence, 0)} interval {percent(kept.low)} to {percent(kept.high)}"
        what = f"{percent(kept.value)} of the {comparison.metric} of {comparison.reference}"
        parts = [f"{result.name} retains {what} ({interval})"]
    else:
        change = signed(comparison.difference.value)
        parts = [f"{result.name}: {comparison.metric} {change} to {comparison.reference}"]
    speed, shrinkage = speed_sentence(result), result.shrinkage()
    if speed:
        parts.append(speed)
    if shrinkage:
        parts.append(times(shrinkage, "smaller", "larger"))
    return ", ".join(parts)


def verdict(result: ResultValues) -> str:
    """Return the verdict with the difference behind it; empty without a reference."""
    comparison = result.comparison
    if comparison is None:
        return ""
    said = VERDICTS[comparison.verdict].format(
        reference=comparison.reference, margin=f"{comparison.margin:g} {comparison.metric}"
    )
    seeds = f" in {count(comparison.groups)} groups" if comparison.groups else ""
    seeds += f", {comparison.seeds} seeds pooled, as for {comparison.covers}" if comparison.seeds > 1 else ""
    caution = _caution(comparison, result.examples)
    return (
        f"{said[0].upper()}{said[1:]}: the difference is {difference(result)} "
        f"({percent(comparison.confidence, 0)} interval, {count(result.examples)} examples{seeds}){caution}"
    )


def _caution(comparison: Comparison, examples: int) -> str:
    """Return what so many examples can show; nothing where they are enough, or may say nothing."""
    if comparison.verdict == "selection":
        return ""
    if comparison.method == "paired bootstrap":
        # Rule of three: an error never seen on n examples may still have a rate of 3 / n (Hanley & Lippman-Hand 1983).
        unseen = 3 / max(1, examples)
        return f"; so few examples say little about losses below {unseen:.2g}" if unseen > comparison.margin else ""
    if comparison.verdict != "not shown" or comparison.examples_needed is None or comparison.smallest_margin is None:
        return ""
    return f"; {power(comparison.smallest_margin, comparison.margin, comparison.examples_needed)}"


def family(results: Sequence[ResultValues]) -> str:
    """Return what holds of several candidates at once, by Holm's correction; empty for one comparison or none.

    Scores of a selection are left out: they are not held against a margin.
    """
    known = [
        (result.name, comparison, comparison.noninferiority_p)
        for result in results
        if (comparison := result.comparison) is not None
        and comparison.verdict != "selection"
        and comparison.noninferiority_p is not None
        and math.isfinite(comparison.noninferiority_p)
    ]
    if len(known) < 2:
        return ""
    corrected = holm([p_value for _, _, p_value in known])
    shown = [
        name
        for (name, comparison, _), p_value in zip(known, corrected, strict=True)
        if p_value < (1 - comparison.confidence) / 2
    ]
    return (
        f"{len(known)} comparisons: after Holm's correction for all of them, non-inferiority is established for "
        f"{'; '.join(shown) or 'none'}"
    )


def shipped(results: Sequence[ResultValues], exports: Collection[str] = ()) -> ResultValues | None:
    """Return the compared result that stands at the top: that of the file that a user puts to work.

    It is the fastest export at batch size 1; of exports that were not timed, the smallest. Without any export it is the
    first compared model. No score is looked at, so nothing is chosen on the examples that report.

    Args:
        results: What ``measure`` returned.
        exports: Names of the exports of the model that is reported; a result with an export of its reference to be held
            against is one as well.
    """
    compared = [result for result in results if result.comparison]
    made = [result for result in compared if result.same_engine or result.name in exports]
    timed = all(result.row() for result in made)
    dear = _milliseconds if timed else lambda result: result.bytes or math.inf
    return min(made, key=dear, default=next(iter(compared), None))


def _milliseconds(result: ResultValues) -> float:
    row = result.row()
    return math.inf if row is None else row.p50_ms


def role_sentences(results: Sequence[ResultValues]) -> list[str]:
    """Return what the scores may say: final ones together, and each of a selection with what was chosen; no full stop.

    Results of earlier versions do not say it.
    """
    found = [
        f"{result.name}: the score is one of a selection; chosen on these very examples: "
        + "; ".join(sorted(result.chosen_on))
        for result in results
        if result.role == "selection"
    ]
    final = [result.name for result in results if result.role == "final"]
    if final and found:
        found.append(f"{', '.join(final)}: final; nothing was chosen on these examples")
    elif final:
        found.append(f"The scores are final: nothing of these models was chosen on the {results[0].split} examples")
    return found


def search_sentences(results: Sequence[ResultValues]) -> list[str]:
    """Return what each approximate search finds, beside exact search among the same vectors; no full stop."""
    return [
        f"{result.name}: approximate search finds {percent(found.top_10)} of the ten documents that exact search ranks "
        f"first; {result.metric} {number(result.score)}, with exact search {number(found.exact)}"
        for result in results
        if (found := result.approximation) is not None
    ]


def difference(result: ResultValues) -> str:
    """Return candidate minus reference with its interval, such as ``-0.0040 [-0.0092, +0.0011]``."""
    if result.comparison is None:
        return ""
    return with_interval(result.comparison.difference)


def with_interval(found: Interval) -> str:
    """Return a difference with its interval, such as ``-0.0040 [-0.0092, +0.0011]``."""
    return f"{signed(found.value)} [{signed(found.low)}, {signed(found.high)}]"


def reference_result(results: Sequence[ResultValues]) -> ResultValues | None:
    """Return the reference's figures as a result of its own, when the results hold them but not its row."""
    known = {result.name for result in results}
    for result in results:
        comparison = result.comparison
        if comparison is not None and comparison.reference not in known and comparison.reference_scores:
            return result.model_copy(
                update={
                    "name": comparison.reference,
                    "scores": comparison.reference_scores,
                    "size": comparison.reference_size,
                    "file_bytes": comparison.reference_bytes,
                    "folder_bytes": None,
                    "comparison": None,
                    "same_engine": None,
                    "memory": None,
                    "no_memory": None,
                    "role": None,
                    "chosen_on": {},
                    "calibration_error": None,
                    "slices": (),
                    "confusion": None,
                    "kept": None,
                }
            )
    return None


def with_reference(results: Sequence[ResultValues]) -> list[ResultValues]:
    """Return the results with the reference first, also where only its figures are known."""
    reference = reference_result(results)
    named = {result.comparison.reference for result in results if result.comparison}
    ordered = sorted(results, key=lambda result: result.name not in named)
    return ordered if reference is None else [reference, *ordered]


def number(value: float | None, digits: int = 4) -> str:
    """Return a score; a dash where there is none."""
    return f"{value:.{digits}f}" if value is not None and math.isfinite(value) else "-"


def signed(value: float, digits: int = 4) -> str:
    """Return a difference with its sign."""
    return f"{value:+.{digits}f}" if math.isfinite(value) else "-"


def percent(value: float, digits: int = 1) -> str:
    """Return a share as a percentage."""
    return f"{100 * value:.{digits}f}%" if math.isfinite(value) else "-"


def times(ratio: float, more: str, less: str) -> str:
    """Return ``2.1 times smaller`` or, below 1, ``1.3 times larger``."""
    word, ratio = (more, ratio) if ratio >= 1 else (less, 1 / ratio)
    return f"{ratio:.1f} times {word}" if round(ratio, 1) > 1 else f"no {word}"


def count(value: float | None) -> str:
    """Return a count with thin groups, such as ``67,348``; a dash where there is none."""
    return f"{value:,.0f}" if value is not None else "-"


def short(value: float | None, unit: str = "") -> str:
    """Return a large number in three digits, such as ``4.39 M`` or ``17.6 MB``; a dash where there is none."""
    if value is None:
        return "-"
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k" if unit else "K")):
        if abs(value) >= size * 0.9995:
            scaled = value / size
            digits = 2 if abs(scaled) < 9.995 else 1 if abs(scaled) < 99.95 else 0
            return f"{scaled:.{digits}f} {prefix}{unit}"
    return f"{value:.0f} {unit}".rstrip()


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
