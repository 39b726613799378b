"""Scores of predictions that are sets of labels: micro and macro F1, average precision, equal sets.

A label of which there is neither a truth nor a prediction has no F1, and one without a truth no average precision: it
is left out of the mean. Where every label occurs, the scores are those of scikit-learn.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from eval.examples import Answer, Asks, Example
from eval.metrics.scorers import Indices, Scorer, Values, mean


def set_counts(spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> Values:
    """Count the labels of each example, ``[N, 3]``: those answered rightly, all answered, all true."""
    del spec
    sides = ((set(a["labels"]), set(e["labels"])) for a, e in zip(answers, examples, strict=True))
    counts = [(len(found & true), len(found), len(true)) for found, true in sides]
    return np.array(counts, dtype=np.float64).reshape(-1, 3)


def set_f1(spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> Values:
    """Return the F1 of each set alone; 1 where both sets are empty."""
    right, found, true = set_counts(spec, answers, examples).T
    both = found + true
    return np.asarray(np.divide(2 * right, both, out=np.ones(len(both)), where=both > 0))


def equal_sets(answers: Sequence[Answer], examples: Sequence[Example]) -> Values:
    """Return 1 for each set that is the true one, else 0."""
    pairs = zip(answers, examples, strict=True)
    return np.array([set(a["labels"]) == set(e["labels"]) for a, e in pairs], dtype=np.float64)


def subset_accuracy(spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> Scorer:
    """Share of sets that are the true ones."""
    del spec
    return mean(equal_sets(answers, examples))


def macro_f1(spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> Scorer:
    """Mean F1 of the labels that occur among the truths or the answers."""
    # A model may answer a label that the task does not have, and then it is wrong.
    used = (label for side in (answers, examples) for one in side for label in one["labels"])
    names = dict.fromkeys([*spec.labels, *used])
    found, true = (_table(side, tuple(names)) for side in (answers, examples))
    right = found & true

    def score(indices: Indices) -> float:
        both = found[indices].sum(axis=0) + true[indices].sum(axis=0)
        occurs = both > 0
        return float((2 * right[indices].sum(axis=0)[occurs] / both[occurs]).mean()) if occurs.any() else 0.0

    return score


def average_precision(spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> Scorer:
    """Mean over the labels that are true of some example of ``Σ (R_k - R_(k-1)) P_k``.

    ``P_k`` and ``R_k`` are precision and recall among the examples whose probability is at least the k-th largest; no
    area is interpolated, and equal probabilities count together.
    """
    true = _table(examples, spec.labels)
    rows = [[answer["probabilities"][label] for label in spec.labels] for answer in answers]
    chances = np.array(rows, dtype=np.float64)
    if np.isnan(chances).any():
        return lambda indices: float("nan")
    order = np.argsort(-chances, axis=0, kind="stable")
    sorted_chances, sorted_true = (np.take_along_axis(side, order, axis=0) for side in (chances, true))
    last = np.ones(chances.shape, dtype=bool)  # of the examples that have one probability
    last[:-1] = sorted_chances[1:] < sorted_chances[:-1]

    def score(indices: Indices) -> float:
        weight = np.bincount(indices, minlength=len(true)).astype(np.float64)[order]
        above, right = weight.cumsum(axis=0), (weight * sorted_true).cumsum(axis=0)
        found = [
            _precision(above[ends, label], right[ends, label])
            for label, ends in enumerate(last.T)
            if right[-1, label] > 0
        ]
        return float(np.mean(found)) if found else 0.0

    return score


def _precision(above: Values, right: Values) -> float:
    """Return the average precision of a label from how many examples lie above each probability, and how many right."""
    gained = np.diff(right, prepend=0.0)
    return float((gained * right / np.maximum(above, 1.0)).sum() / right[-1])


def _table(rows: Sequence[Example], names: Sequence[str]) -> np.ndarray:
    """Return which labels each row has, boolean ``[N, labels]``."""
    place = {name: number for number, name in enumerate(names)}
    table = np.zeros((len(rows), len(names)), dtype=bool)
    for number, row in enumerate(rows):
        table[number, [place[label] for label in row["labels"] if label in place]] = True
    return table
