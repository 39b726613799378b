"""What comes of a claim, from the predictions of both models: the same functions as for every measurement."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eval.certificate.contents import Claim, Contents, Outcome
from eval.proof.many_comparisons import holm
from eval.proof.paired_predictions import paired_scores
from eval.proof.paired_statistics import non_inferior
from eval.proof.power import power
from eval.scores import score


@dataclass(frozen=True)
class Asked:
    """What scores read of a task specification.

    Attributes:
        kind: The form of a prediction.
        labels: Class names or tags by id.
        metric: The primary metric.
        pair: Whether an example is a pair of texts.
        class_weights: Weight of each label in the loss.
    """

    kind: str
    labels: tuple[str, ...]
    metric: str
    pair: bool = False
    class_weights: tuple[float, ...] | None = None

    @classmethod
    def of(cls, task: Mapping[str, Any]) -> Asked:
        """Read it from the plain values of a ``TaskSpec``."""
        return cls(str(task["kind"]), tuple(task.get("labels", ())), str(task["metric"]), bool(task.get("pair", False)))


def scored(contents: Contents) -> tuple[list[Any], list[Any], list[Any], list[str | None] | None]:
    """Return truths, the predictions of candidate and teacher, and groups where the claim has any."""
    rows, grouped = contents.rows, contents.main.fixed.claim.groups
    sides = ([row.gold for row in rows], [row.candidate for row in rows], [row.teacher for row in rows])
    return *sides, [row.group for row in rows] if grouped else None


def outcome_of(
    task: Mapping[str, Any],
    claim: Claim,
    gold: Sequence[Mapping[str, Any]],
    candidate: Sequence[dict[str, Any]],
    teacher: Sequence[dict[str, Any]],
    groups: Sequence[str | None] | None = None,
    family: Sequence[float] = (),
) -> Outcome:
    """Return scores, the interval of their difference and the verdict.

    Of several candidates a verdict holds for all of them together: the margin is shown only if it still is after Holm's
    correction.

    Args:
        task: The task specification, as plain values.
        claim: What was to be shown.
        gold: The truth of each example.
        candidate: The candidate's predictions.
        teacher: The teacher's, on the same examples.
        groups: The group of each example, if the claim has any.
        family: See ``Certificate.family``.

    Raises:
        UserError: There is nothing to score, or the metric is none of the task.
    """
    asked: Any = Asked.of(task)
    scores = [score(asked, predictions, gold) for predictions in (candidate, teacher)]
    compared = paired_scores(asked, [(candidate, teacher)], gold, groups, claim.seed)
    found = compared.difference.interval(claim.confidence)
    first, second = ({name: _finite(value) for name, value in one.items()} for one in scores)
    ends = (_finite(found.value), _finite(found.low), _finite(found.high))
    verdict = non_inferior(found, claim.margin)
    if verdict == "non-inferior" and family:
        corrected, *_ = holm([compared.difference.p_value(-claim.margin), *family])
        verdict = "non-inferior" if corrected < (1 - claim.confidence) / 2 else "not shown"
    return Outcome(first, second, *ends, verdict)


def power_of(contents: Contents) -> str:
    """Return what the examples of a certificate can show, and how many its margin needs; empty where no number does."""
    claim = contents.main.fixed.claim
    asked: Any = Asked.of(contents.main.task)
    gold, candidate, teacher, groups = scored(contents)
    compared = paired_scores(asked, [(candidate, teacher)], gold, groups, claim.seed)
    needed = compared.examples_needed(claim.margin, len(gold))
    return "" if needed is None else power(compared.difference.smallest_margin(claim.confidence), claim.margin, needed)


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
