"""Metrics of rankings: how far up the relevant documents of a query stand.

Every one takes the ids of the ranked documents of a query, best first, and the grade of each judged document; a
document with a grade above 0 is relevant, one that is not judged is not. They are those of ``trec_eval`` and of BEIR.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice

import numpy as np

from eval.examples import Answer, Asks, Example
from eval.metrics.scorers import Metric, Scorer, Values, mean

Grades = Mapping[str, float]
PerQuery = Callable[[Sequence[str], Grades], float]


def ndcg(ranking: Sequence[str], relevant: Grades, first: int) -> float:
    """Return the normalized discounted cumulative gain of the ``first`` documents.

    ``sum grade / log2 (place + 1)``, places from 1, divided by that of the best order of all judged documents (Järvelin
    and Kekäläinen 2002, "Cumulated gain-based evaluation of IR techniques").

    Examples:
        >>> round(ndcg(["a", "b", "c"], {"b": 1, "z": 1}, first=10), 4)  # 0.6309 of 1.6309
        0.3869
    """
    best = _discounted(sorted((grade for grade in relevant.values() if grade > 0), reverse=True)[:first])
    return _discounted([max(0.0, relevant.get(name, 0)) for name in ranking[:first]]) / best if best else 0.0


def _discounted(gains: Sequence[float]) -> float:
    return math.fsum(gain / math.log2(place + 1) for place, gain in enumerate(gains, start=1))


def reciprocal_rank(ranking: Sequence[str], relevant: Grades, first: int) -> float:
    """Return 1 divided by the place, from 1, of the first relevant document; 0 if none is among the ``first``."""
    found = (place for place, name in enumerate(ranking[:first], start=1) if relevant.get(name, 0) > 0)
    return 1 / next(found, math.inf)


def recall(ranking: Sequence[str], relevant: Grades, first: int) -> float:
    """Return the share of the relevant documents that are among the ``first``."""
    wanted = {name for name, grade in relevant.items() if grade > 0}
    return len(wanted.intersection(islice(ranking, first))) / len(wanted) if wanted else 0.0


def average_precision(ranking: Sequence[str], relevant: Grades, first: int) -> float:
    """Return the mean over all relevant documents of the precision at their places, 0 for those after ``first``."""
    wanted = sum(grade > 0 for grade in relevant.values())
    places = [place for place, name in enumerate(ranking[:first], start=1) if relevant.get(name, 0) > 0]
    return math.fsum(right / place for right, place in enumerate(places, start=1)) / wanted if wanted else 0.0


PER_QUERY: Mapping[str, PerQuery] = {
    "ndcg@10": partial(ndcg, first=10),
    "mrr@10": partial(reciprocal_rank, first=10),
    "recall@10": partial(recall, first=10),
    "recall@100": partial(recall, first=100),
    "map@100": partial(average_precision, first=100),
}
"""Every metric by its name, for one query."""


def by_query(metric: str, answers: Sequence[Answer], examples: Sequence[Example]) -> Values:
    """Return a metric of each query, ``[N]``, from ``ranking`` of its answer and ``relevant`` of the example."""
    score, pairs = PER_QUERY[metric], zip(answers, examples, strict=True)
    return np.array([score(answer["ranking"], example["relevant"]) for answer, example in pairs], dtype=np.float64)


def metrics() -> tuple[Metric, ...]:
    """Return the metrics, means over queries, in the order of reports."""

    def over_queries(name: str, spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> Scorer:
        del spec
        return mean(by_query(name, answers, examples))

    return tuple(Metric(name, partial(over_queries, name)) for name in PER_QUERY)
