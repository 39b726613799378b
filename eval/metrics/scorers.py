"""How each metric is counted: every example becomes a few numbers, and the metric follows from those of any examples.

A function here takes (spec, answers, examples) and returns a function of the indices of examples. Its first half runs
once; the second is a few operations on arrays, so a thousand subsets take about a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eval.examples import Answer, Asks, Example
from eval.metrics import correlation
from eval.metrics.entities import entities

Indices = NDArray[np.int64]
Values = NDArray[np.float64]
Scorer = Callable[[Indices], float]
"""The metric on the examples with these indices, which may repeat."""
Prepare = Callable[[Asks, Sequence[Answer], Sequence[Example]], Scorer]
"""Reduces every example to a few numbers and returns the metric over them."""


@dataclass(frozen=True)
class Metric:
    """A score of a kind of task.

    Attributes:
        name: What recipes and reports call it.
        prepare: How it is computed.
        decides: Whether higher is better, so that it can be the metric of a task; others are only reported.
        proportion: Whether it is the share of examples that are right, each for itself, as the accuracy is.
    """

    name: str
    prepare: Prepare
    decides: bool = True
    proportion: bool = False


ROWS = 1024
"""Texts that are compared with all others at a time."""
MOST_NATS = 700.0
"""A loss above this counts as this, so that its exponential stays a float."""


def mean(values: Values) -> Scorer:
    """Return the mean of one value an example."""
    return lambda indices: float(values[indices].mean())


def share(equal: Iterable[bool]) -> float:
    """Return the share of what is true; NaN of nothing."""
    flags = list(equal)
    return sum(flags) / len(flags) if flags else float("nan")


def accuracy(spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> Scorer:
    """Share of right labels."""
    return mean(right_labels(answers, examples))


def right_labels(answers: Sequence[Answer], examples: Sequence[Example]) -> Values:
    """Return 1 for each right label, else 0."""
    return np.array([a["label"] == e["label"] for a, e in zip(answers, examples, strict=True)], dtype=np.float64)


def from_confusion(metric: Callable[[Values], float]) -> Prepare:
    """Make a metric of a confusion table ``[true, answered]`` one of examples."""

    def prepare(spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> Scorer:
        # A model may answer a label that the task does not have, and then it is wrong.
        names = dict.fromkeys([*spec.labels, *(e["label"] for e in examples), *(a["label"] for a in answers)])
        code = {name: number for number, name in enumerate(names)}
        width = len(code)
        cells = np.array(
            [code[e["label"]] * width + code[a["label"]] for a, e in zip(answers, examples, strict=True)],
            dtype=np.int64,
        )

        def score(indices: Indices) -> float:
            counts = np.bincount(cells[indices], minlength=width * width)
            return metric(counts.reshape(width, width).astype(np.float64))

        return score

    return prepare


def macro_f1(table: Values) -> float:
    """Mean F1 of the labels that occur among the truths or the answers."""
    both = table.sum(axis=0) + table.sum(axis=1)
    occurs = both > 0
    return float((2 * np.diag(table)[occurs] / both[occurs]).mean())


def matthews(table: Values) -> float:
    """Matthews' correlation for any number of classes (Gorodkin 2004)."""
    true, answered, total = table.sum(axis=1), table.sum(axis=0), table.sum()
    spread = (total**2 - true @ true) * (total**2 - answered @ answered)
    return float((np.trace(table) * total - true @ answered) / np.sqrt(spread)) if spread > 0 else 0.0


def binary_counts(spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> Values:
    """Count the last label, the positive one: (answered rightly, answered, true) of each example."""
    positive = spec.labels[-1]
    pairs = [(a["label"] == positive, e["label"] == positive) for a, e in zip(answers, examples, strict=True)]
    return np.array([(answered and true, answered, true) for answered, true in pairs], dtype=np.float64)


def entity_counts(spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> Values:
    """Count entities as conlleval does: right are those of equal type, start and end (seqeval's default mode)."""
    counts = []
    for answer, example in zip(answers, examples, strict=True):
        found, wanted = entities(answer["tags"]), entities(example["tags"])
        counts.append((len(found & wanted), len(found), len(wanted)))
    return np.array(counts, dtype=np.float64)


def from_counts(
    count: Callable[[Asks, Sequence[Answer], Sequence[Example]], Values],
    metric: Callable[[float, float, float], float],
) -> Prepare:
    """Make a metric of three sums (found and right, found, to be found) one of examples."""

    def prepare(spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> Scorer:
        counts = count(spec, answers, examples).reshape(-1, 3)
        return lambda indices: metric(*counts[indices].sum(axis=0).tolist())

    return prepare


def f1(right: float, found: float, wanted: float) -> float:
    """Harmonic mean of precision and recall."""
    return 2 * right / (found + wanted) if found + wanted else 0.0


def precision(right: float, found: float, wanted: float) -> float:
    """Share of what was found that is right."""
    return right / found if found else 0.0


def recall(right: float, found: float, wanted: float) -> float:
    """Share of what was to be found that was found."""
    return right / wanted if wanted else 0.0


def token_accuracy(spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> Scorer:
    """Share of right tags over all tokens."""
    pairs = [(a["tags"], e["tags"]) for a, e in zip(answers, examples, strict=True)]
    right = np.array([sum(x == y for x, y in zip(a, e, strict=True)) for a, e in pairs], dtype=np.float64)
    return _ratio(right, np.array([len(e) for _, e in pairs], dtype=np.float64))


def _ratio(above: Values, below: Values) -> Scorer:
    def score(indices: Indices) -> float:
        total = below[indices].sum()
        return float(above[indices].sum() / total) if total else 0.0

    return score


def score_pairs(answers: Sequence[Answer], examples: Sequence[Example]) -> tuple[Values, Values]:
    """Return predicted and true scores."""
    predicted = np.array([answer["score"] for answer in answers], dtype=np.float64)
    return predicted, np.array([example["label"] for example in examples], dtype=np.float64)


def pearson(spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> Scorer:
    """Pearson's correlation."""
    predicted, true = score_pairs(answers, examples)
    return lambda indices: correlation.pearson(predicted[indices], true[indices])


def spearman(spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> Scorer:
    """Pearson's correlation of the ranks."""
    pairs = score_pairs(answers, examples)
    if np.isnan(pairs[0]).any():
        return lambda indices: float("nan")
    predicted, true = (np.unique(values, return_inverse=True)[1] for values in pairs)
    return lambda indices: correlation.pearson(correlation.ranks(predicted[indices]), correlation.ranks(true[indices]))


def nearest(spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> Scorer:
    """Share of texts whose nearest other text, by cosine, is of their class; the others are always all examples."""
    return mean(right_neighbours(answers, examples))


def right_neighbours(answers: Sequence[Answer], examples: Sequence[Example]) -> Values:
    """Return 1 for each text whose nearest other text has its label, else 0; the first of several that are as near.

    A prediction whose vectors were not kept has this as ``right`` (``Kind.condensed``).
    """
    if answers and "right" in answers[0]:
        return np.array([answer["right"] for answer in answers], dtype=np.float64)
    labels = np.array([str(example["label"]) for example in examples])
    vectors = np.array([answer["vectors"][0] for answer in answers], dtype=np.float32)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    right = np.zeros(len(labels))
    for first in range(0, len(labels) if len(labels) > 1 else 0, ROWS):
        rows = np.arange(first, min(first + ROWS, len(labels)))
        cosines = vectors[rows] @ vectors.T
        cosines[np.arange(len(rows)), rows] = -np.inf
        right[rows] = labels[cosines.argmax(axis=1)] == labels[rows]
    return right


def rank_errors(answers: Sequence[Answer], examples: Sequence[Example]) -> Values:
    """Return for each pair the squared difference of the ranks of its score and its label, ranks from 0 to 1."""
    predicted, true = (
        correlation.ranks(np.unique(values, return_inverse=True)[1]) / len(values)
        for values in score_pairs(answers, examples)
    )
    return np.asarray((predicted - true) ** 2)


def mean_squared_error(spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> Scorer:
    """Mean squared difference."""
    predicted, true = score_pairs(answers, examples)
    return mean((predicted - true) ** 2)


def over_questions(score: Callable[[str, str], float]) -> Prepare:
    """Make a comparison of two texts a metric: the best over the expected answers, averaged over the questions."""

    def prepare(spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> Scorer:
        return mean(best_scores(score, answers, examples))

    return prepare


def best_scores(score: Callable[[str, str], float], answers: Sequence[Answer], examples: Sequence[Example]) -> Values:
    """Return for each question the best score over its expected answers; one without any expects an empty answer."""
    pairs = zip(answers, examples, strict=True)
    expected = [(answer["text"], [one["text"] for one in example["answers"]] or [""]) for answer, example in pairs]
    return np.array([max(score(text, one) for one in those) for text, those in expected], dtype=np.float64)


def masked_accuracy(spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> Scorer:
    """Share of right tokens among those that are predicted."""
    return _ratio(column(answers, "correct"), column(answers, "total"))


def perplexity_of(loss: float) -> float:
    """Return the exponential of a mean loss in nats, finite for every loss that is."""
    return float(np.exp(min(loss, MOST_NATS)))


def perplexity(spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> Scorer:
    """Exponential of the mean loss of a token that is predicted."""
    loss = _ratio(column(answers, "loss"), column(answers, "total"))
    return lambda indices: perplexity_of(loss(indices))


def likelihood(spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> Scorer:
    """Geometric mean of the probabilities of all tokens, the inverse of the perplexity."""
    loss = _ratio(column(answers, "loss"), column(answers, "total"))
    return lambda indices: float(np.exp(-loss(indices)))


def word_perplexity(spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> Scorer:
    """Exponential of the loss of all tokens, divided by the number of words that white space separates.

    Models with other tokenizers can be compared by it, as by ``bits_per_byte`` (Radford et al. 2019).
    """
    loss = _ratio(column(answers, "loss"), column(answers, "words"))
    return lambda indices: perplexity_of(loss(indices))


def bits_per_byte(spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> Scorer:
    """The loss of all tokens in bits, divided by the bytes of the texts in UTF-8."""
    loss = _ratio(column(answers, "loss"), column(answers, "bytes"))
    return lambda indices: float(loss(indices) / np.log(2))


def column(answers: Sequence[Answer], name: str) -> Values:
    """Return one figure of each answer."""
    return np.array([answer[name] for answer in answers], dtype=np.float64)
