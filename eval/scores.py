"""The scores of every kind of task: on all examples, on one, and on any resample of them.

A metric is defined once, as a function of the indices of examples (see ``eval.metrics.scorers``). The score of a split, the
bootstrap and the slices all use that function, so they cannot disagree.

All scores are fractions (0 to 1, correlations -1 to 1), not percent. Where a metric does not exist it is 0, without a
warning: a correlation, when all predictions or all labels are equal; an F1, when there is nothing to find.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from eval.data.item_checks import TRUTH
from eval.errors import UserError, did_you_mean
from eval.inference import Answer
from eval.metrics import scorers
from eval.metrics.answer_overlap import exact_match, token_f1
from eval.metrics.scorers import Prepare, Scorer, Values
from eval.task import Example, TaskSpec

DEFAULT_METRIC = {
    "classification": "accuracy",
    "regression": "spearman",
    "tagging": "entity_f1",
    "qa": "f1",
    "masked-lm": "masked_accuracy",
    "embedding": "spearman",
    "multiple-choice": "accuracy",
}
"""The metric that decides when none is named, by kind; see ``default_metric``."""
ENTITY_TAG = re.compile(r"O|[BIES]-.+")


@dataclass(frozen=True)
class Metric:
    """A score.

    Attributes:
        name: What recipes and reports call it.
        prepare: How it is computed, by the kinds that have it.
        decides: Whether higher is better, so that it can be the metric of a task; others are only reported.
    """

    name: str
    prepare: Mapping[str, Prepare]
    decides: bool = True

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of task that have this metric."""
        return tuple(self.prepare)


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("accuracy", {"classification": scorers.accuracy, "multiple-choice": scorers.accuracy}),
        Metric("macro_f1", {"classification": scorers.from_confusion(scorers.macro_f1)}),
        Metric(
            "f1",
            {
                "classification": scorers.from_counts(scorers.binary_counts, scorers.f1),
                "qa": scorers.over_questions(token_f1),
            },
        ),
        Metric("matthews", {"classification": scorers.from_confusion(scorers.matthews)}),
        Metric("spearman", {"regression": scorers.spearman, "embedding": scorers.spearman}),
        Metric("pearson", {"regression": scorers.pearson, "embedding": scorers.pearson}),
        Metric("nearest", {"embedding": scorers.nearest}),
        Metric("mse", {"regression": scorers.mean_squared_error}, decides=False),
        Metric("entity_f1", {"tagging": scorers.from_counts(scorers.entity_counts, scorers.f1)}),
        Metric("entity_precision", {"tagging": scorers.from_counts(scorers.entity_counts, scorers.precision)}),
        Metric("entity_recall", {"tagging": scorers.from_counts(scorers.entity_counts, scorers.recall)}),
        Metric("token_accuracy", {"tagging": scorers.token_accuracy}),
        Metric("exact_match", {"qa": scorers.over_questions(exact_match)}),
        Metric("masked_accuracy", {"masked-lm": scorers.masked_accuracy}),
        Metric("perplexity", {"masked-lm": scorers.perplexity}, decides=False),
    )
}
"""Every score by name; f1 is that of the last label (classification, two labels) or of an answer's words (qa)."""


def default_metric(kind: str, pair: bool) -> str:
    """Return the metric that decides when none is named; single texts with a class ask for their neighbours."""
    return "nearest" if kind == "embedding" and not pair else DEFAULT_METRIC[kind]


def unfit(name: str, spec: TaskSpec) -> str | None:
    """Say why a metric cannot decide a task, or None if it can; labels count where there are any."""
    allowed = [other for other, metric in METRICS.items() if spec.kind in metric.kinds and metric.decides]
    if name not in METRICS or spec.kind not in METRICS[name].kinds:
        return f"{spec.kind} has no metric {name!r}{did_you_mean(name, allowed)}"
    if not METRICS[name].decides:
        return f"{name!r} is only reported, as lower is better; allowed: {', '.join(allowed)}"
    return _unfit_examples(name, spec)


def _unfit_examples(name: str, spec: TaskSpec) -> str | None:
    if spec.kind == "embedding" and (name == "nearest") == spec.pair:
        forms = ("single texts with a class as label", "pairs of texts with a number as label")
        fitting = "spearman or pearson" if spec.pair else "nearest"
        return f"{name!r} is for {forms[not spec.pair]}, here are {forms[spec.pair]}; use {fitting}"
    if name == "f1" and spec.kind == "classification" and spec.labels and len(spec.labels) != 2:
        return f"'f1' is for two labels (the last is the positive one), here are {len(spec.labels)}; use macro_f1"
    other = [label for label in spec.labels if not ENTITY_TAG.fullmatch(label)]
    if name.startswith("entity_") and other:
        return f"{name!r} is for BIO tags such as O, B-PER, I-PER, but there is {other[0]!r}; use token_accuracy"
    return None


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
    for name, metric in METRICS.items():
        if name not in scores and spec.kind in metric.kinds and _unfit_examples(name, spec) is None:
            scores[name] = metric.prepare[spec.kind](spec, answers, examples)(everything)
    return scores


def resampler(spec: TaskSpec, answers: Sequence[Answer], examples: Sequence[Example]) -> Scorer:
    """Return the metric of the task as a function of the indices of examples, cheap enough for a bootstrap.

    Raises:
        UserError: As for ``score``.
    """
    misfit = unfit(spec.metric, spec)
    if misfit:
        raise UserError(f"metric: {misfit}")
    if len(answers) != len(examples):
        raise UserError(f"score: {len(answers)} answers for {len(examples)} examples; there must be one for each")
    if not len(examples):
        raise UserError("score: there are no examples to score")
    truth = TRUTH.get(spec.kind)
    unlabelled = sum(truth not in example for example in examples) if truth else 0
    if unlabelled:
        raise UserError(f"score: {unlabelled} of {len(examples)} examples have no {truth!r} to compare with")
    return METRICS[spec.metric].prepare[spec.kind](spec, answers, examples)


def per_example(spec: TaskSpec, answers: Sequence[Answer], examples: Sequence[Example]) -> Values:
    """Return a score of each example alone, ``[N]``, higher is better.

    classification and multiple-choice: 1 for the right label, else 0. tagging: 1 for a sentence with all tags right,
    else 0. regression: the negative squared error. qa: the exact match (0 or 1) if that is the metric, else the F1.
    masked-lm: the share of masked tokens that are right, 0 where none was masked. embedding: 1 for a text whose
    nearest other text is of its class, else 0; for pairs the negative squared difference of the ranks, from 0 to 1,
    of cosine and label.
    """
    if spec.kind in ("classification", "multiple-choice"):
        return scorers.right_labels(answers, examples)
    if spec.kind == "tagging":
        pairs = zip(answers, examples, strict=True)
        return np.array([list(a["tags"]) == list(e["tags"]) for a, e in pairs], dtype=np.float64)
    if spec.kind == "regression":
        predicted, true = scorers.score_pairs(answers, examples)
        return -((predicted - true) ** 2)
    if spec.kind == "qa":
        return scorers.best_scores(exact_match if spec.metric == "exact_match" else token_f1, answers, examples)
    if spec.kind == "embedding":
        found = scorers.rank_errors if spec.pair else scorers.right_neighbours
        return -found(answers, examples) if spec.pair else found(answers, examples)
    total = scorers.column(answers, "total")
    return np.divide(scorers.column(answers, "correct"), total, out=np.zeros(len(answers)), where=total > 0)
