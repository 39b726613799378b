"""What comes of a claim, from the predictions of both models: the same functions as for every measurement."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eval.certificate.contents import Claim, Outcome
from eval.kinds.kind_registry import kind_of
from eval.proof.paired_proportions import Discordance, score_interval
from eval.proof.paired_statistics import non_inferior, paired_bootstrap
from eval.scores import metrics_of, resampler, score

SCORE_INTERVAL, BOOTSTRAP = "score interval", "paired bootstrap"


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


def method_for(kind: str, metric: str) -> str:
    """Return the test for a metric: the score interval for a share of right examples, else the bootstrap."""
    return SCORE_INTERVAL if metrics_of(kind)[metric].proportion else BOOTSTRAP


def outcome_of(
    task: Mapping[str, Any],
    claim: Claim,
    gold: Sequence[Mapping[str, Any]],
    candidate: Sequence[dict[str, Any]],
    teacher: Sequence[dict[str, Any]],
    groups: Sequence[str | None] | None = None,
) -> Outcome:
    """Return scores, the interval of their difference and the verdict.

    Args:
        task: The task specification, as plain values.
        claim: What was to be shown.
        gold: The truth of each example.
        candidate: The candidate's predictions.
        teacher: The teacher's, on the same examples.
        groups: The group of each example, if the claim has any.

    Raises:
        UserError: There is nothing to score, or the metric is none of the task.
    """
    asked: Any = Asked.of(task)
    scores = [score(asked, predictions, gold) for predictions in (candidate, teacher)]
    if claim.method == SCORE_INTERVAL:
        values = [kind_of(asked.kind).values(asked, predictions, gold) for predictions in (candidate, teacher)]
        found = score_interval(Discordance.of(*values), claim.confidence)
    else:
        metrics = (resampler(asked, candidate, gold), resampler(asked, teacher, gold))
        drawn = None if groups is None else [f"alone {n}" if g is None else f"group {g}" for n, g in enumerate(groups)]
        found = paired_bootstrap(
            [metrics], len(gold), groups=drawn, confidence=claim.confidence, seed=claim.seed
        ).difference
    first, second = ({name: _finite(value) for name, value in one.items()} for one in scores)
    ends = (_finite(found.value), _finite(found.low), _finite(found.high))
    return Outcome(first, second, *ends, non_inferior(found, claim.margin))


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
