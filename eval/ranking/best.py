"""The best documents of each query by the products of their vectors, in bounded memory."""

from __future__ import annotations

import numpy as np

from eval.examples import Array


def unit(vectors: Array) -> Array:
    """Return vectors ``[n, d]`` scaled to length 1, float32; a vector of zeros stays one."""
    rows = np.asarray(vectors, dtype=np.float32)
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(np.float32).tiny))


def largest(scores: Array, count: int) -> Array:
    """Return the places of the ``count`` largest numbers, largest first; of equal ones the first come first.

    Args:
        scores: ``[n]``.
        count: All of them where there are fewer.

    Examples:
        >>> import numpy as np
        >>> largest(np.array([1.0, 3.0, 3.0, 2.0]), 3)
        array([1, 2, 3])
    """
    places = np.arange(len(scores))
    if 0 < count < len(scores):
        places = np.flatnonzero(scores >= np.partition(scores, len(scores) - count)[len(scores) - count])
    return np.asarray(places[np.argsort(-scores[places], kind="stable")][:count])


class Best:
    """The best documents of each query so far, while documents come in chunks.

    The result does not depend on the chunks: of equal scores the document that came first is the better one.

    Args:
        queries: How many queries there are.
        count: How many documents are kept for each.

    Attributes:
        places: ``[queries][count or fewer]``, the places of the documents, best first.
        scores: Their scores.

    Examples:
        >>> import numpy as np
        >>> best = Best(queries=1, count=2)
        >>> best.add(np.array([[0.2, 0.9]]))
        >>> best.add(np.array([[0.5]]))
        >>> best.places[0].tolist(), best.scores[0].tolist()
        ([1, 2], [0.9, 0.5])
    """

    def __init__(self, queries: int, count: int) -> None:
        self.count, self.seen = count, 0
        self.places: list[Array] = [np.empty(0, dtype=np.int64)] * queries
        self.scores: list[Array] = [np.empty(0, dtype=np.float32)] * queries

    def add(self, scores: Array) -> None:
        """Take further documents.

        Args:
            scores: Of every query and each of the next documents, ``[queries, documents]``.
        """
        fresh = np.arange(self.seen, self.seen + scores.shape[1])
        for query, row in enumerate(scores):
            places, known = np.append(self.places[query], fresh), np.append(self.scores[query], row)
            chosen = largest(known, self.count)
            self.places[query], self.scores[query] = places[chosen], known[chosen]
        self.seen += scores.shape[1]
