"""The scores of every kind of task: on all examples, on one, and on any resample of them.

A metric is defined once, as a function of the indices of examples (see ``eval.metrics.scorers``). The score of a split,
its interval and the slices all use that function, so they cannot disagree.

All scores are fractions (0 to 1, correlations -1 to 1), not percent. Where a metric does not exist it is 0, without a
warning: a correlation, when all predictions or all labels are equal; an F1, when there is nothing to find.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from eval.errors import UserError, did_you_mean, quantity
from eval.examples import Answer, Example
from eval.kinds.kind_registry import kind_of
from eval.metrics.own_metric import OwnMetric, own_metric
from eval.metrics.scorers import Metric, Scorer, Values

if TYPE_CHECKING:
    from eval.task import TaskSpec


logger = logging.getLogger(__name__)


def metrics_of(kind: str) -> dict[str, Metric]:
    """Return every metric of a kind of task by name, in the order of reports.

    Raises:
        UserError: There is no such kind.
    """
    return {metric.name: metric for metric in kind_of(kind).metrics()}


def metric_of(spec: TaskSpec) -> Metric:
    """Return the primary metric of a task, which must be one of its kind or a function of the user's own."""
    if isinstance(spec.metric, OwnMetric):
        kind = kind_of(spec.kind)
        return own_metric(spec.metric, kind.expected, kind.predicted)
    return metrics_of(spec.kind)[spec.metric]


def known_metric(spec: TaskSpec) -> str | None:
    """Return the metric of a task if others know it too, or None and a warning if it was a function of somebody."""
    if spec.metric in metrics_of(spec.kind):
        return spec.metric
    usual = default_metric(spec.kind, spec.pair)
    logger.warning("metric: %r is a function of whoever made the model; %s is taken in its place", spec.metric, usual)
    return None


def default_metric(kind: str, pair: bool) -> str:
    """Return the primary metric when none is named; single texts with a class ask for their neighbours."""
    return kind_of(kind).default_metric(pair)


def unfit(name: str, spec: TaskSpec) -> str | None:
    """Say why a metric cannot decide a task, or None if it can; labels count where there are any."""
    metrics = metrics_of(spec.kind)
    allowed = [other for other, metric in metrics.items() if metric.decides]
    if isinstance(name, OwnMetric):
        if name in metrics:
            return f"{name!r} is a metric of {spec.kind} already; give your function another name"
        if kind_of(spec.kind).predicted:
            return None
        return f"{spec.kind} has no predictions that a function could get; allowed: {', '.join(allowed)}"
    if name not in metrics:
        near = did_you_mean(name, allowed)
        own = "" if near.endswith("?") else "; or give a function of your own itself, in recipes module:function"
        return f"{spec.kind} has no metric {name!r}{near}{own}"
    if not metrics[name].decides:
        return f"{name!r} is only reported, as lower is better; allowed: {', '.join(allowed)}"
    return kind_of(spec.kind).unfit(name, spec)


def score(spec: TaskSpec, answers: Sequence[Answer], examples: Sequence[Example]) -> dict[str, float]:
    """Return the metric of the task first, then the other metrics of its kind.

    Args:
        spec: What was asked.
        answers: One an example; for masked-lm ``{"correct", "total", "loss"}`` over its masked tokens, loss their sum.
        examples: With their truths.

    Raises:
        UserError: There is nothing to score, the metric is not one of this task, or the answers are of other examples.

    Examples:
        >>> from eval import TaskSpec
        >>> spec = TaskSpec(kind="classification", labels=("bad", "good"))
        >>> answers = [{"label": "good"}, {"label": "good"}, {"label": "bad"}, {"label": "bad"}]
        >>> found = score(spec, answers, [{"label": label} for label in ("good", "bad", "bad", "bad")])
        >>> {name: round(value, 3) for name, value in found.items()}
        {'accuracy': 0.75, 'macro_f1': 0.733, 'f1': 0.667, 'matthews': 0.577}
    """
    primary = resampler(spec, answers, examples)
    everything = np.arange(len(examples), dtype=np.int64)
    scores = {spec.metric: primary(everything)}
    for name, metric in metrics_of(spec.kind).items():
        if name not in scores and kind_of(spec.kind).unfit(name, spec) is None:
            scores[name] = metric.prepare(spec, answers, examples)(everything)
    return scores


def resampler(spec: TaskSpec, answers: Sequence[Answer], examples: Sequence[Example]) -> Scorer:
    """Return the metric of the task as a function of the indices of examples, cheap enough to ask a thousand times.

    Raises:
        UserError: As for ``score``.
    """
    misfit = unfit(spec.metric, spec)
    if misfit:
        raise UserError(f"metric: {misfit}")
    if len(answers) != len(examples):
        raise UserError(
            f"score: {quantity(len(answers), 'answer')} for {quantity(len(examples), 'example')}; there must be "
            "one for each"
        )
    if not len(examples):
        raise UserError("score: there are no examples to score")
    truth = kind_of(spec.kind).truth
    unlabelled = sum(truth not in example for example in examples) if truth else 0
    if unlabelled:
        raise UserError(f"score: {unlabelled} of {len(examples)} examples have no {truth!r} to compare with")
    return metric_of(spec).prepare(spec, answers, examples)


def per_example(spec: TaskSpec, answers: Sequence[Answer], examples: Sequence[Example]) -> Values:
    """Return a score of each example alone, ``[N]``, higher is better; by kind, see ``values`` in its file."""
    return kind_of(spec.kind).values(spec, answers, examples)
