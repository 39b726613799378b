"""The one sentence that a certificate comes to: a card, a page and ``compress recheck`` all show this one."""

from __future__ import annotations

from eval.certificate.contents import Certificate
from eval.kinds.kind_registry import kind_names
from eval.scores import metrics_of

VERDICTS = {
    "non-inferior": ("Certified", "is excluded with {confidence} confidence"),
    "not shown": ("Not certified", "is not excluded with {confidence} confidence"),
    "inferior": ("Not certified", "is there with {confidence} confidence"),
}


def sentence(main: Certificate) -> str:
    """Return what a certificate says, without a full stop at its end."""
    claim, outcome = main.fixed.claim, main.outcome
    word, said = VERDICTS.get(outcome.verdict, ("Not certified", "was not compared"))
    candidate, teacher = (_score(scores.get(claim.metric)) for scores in (outcome.candidate, outcome.teacher))
    points = 100 * claim.margin
    margin = f"{points:.1f} point" if round(points, 1) == 1 else f"{points:.3g} points"
    test = _test(main)
    if main.family:
        test += f", corrected by Holm's method for {len(main.family) + 1} candidates"
    loss = f"a loss of more than {margin} {said.format(confidence=f'{100 * claim.confidence:g}%')}"
    size, held = main.index_size, "" if main.index is None else f" (index: {main.index.title})"
    if held and size is not None:
        held = f"{held[:-1]}; {size.bytes:,} bytes for {size.documents:,} documents)"
    return (
        f"{word} on {main.data.parts['test'].examples:,} test examples{held}: "
        f"{claim.metric} {candidate} against {teacher}; {loss} ({test})"
    )


def _test(main: Certificate) -> str:
    """Return the name of the test; for shares of single examples that are right it is Tango's."""
    claim, kind = main.fixed.claim, str(main.task.get("kind"))
    metric = metrics_of(kind).get(claim.metric) if kind in kind_names() else None
    if claim.groups:
        return "paired score interval, by group"
    return "Tango's score interval" if metric is not None and metric.proportion else "paired score interval"


def _score(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
