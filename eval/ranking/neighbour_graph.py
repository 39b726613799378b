"""Approximate search: a graph of documents in which near ones are neighbours (HNSW), by the library ``usearch``."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np

from eval.errors import UserError
from eval.examples import Array

LIBRARY = "usearch"
TYPES = {"float32": "f32", "int8": "i8"}
"""Forms of vectors that a graph holds -> what the library calls them."""
GRAPH_BYTES = 148
"""Bytes of a document's neighbours and number, on average: 32 on the lowest level, 16 on each of those above."""


def lacking() -> str:
    """Return what to install for approximate search; empty where the library is there."""
    if find_spec(LIBRARY) is not None:
        return ""
    return f"approximate search needs the library {LIBRARY}; run: pip install 'nlp-compress[approximate]'"


class NeighbourGraph:
    """Documents in a graph through which a search walks towards a query, so that it sees few of them.

    Source: Malkov and Yashunin 2018 (arXiv 1603.09320). The graph is built and searched by one thread, so equal vectors
    in equal order give an equal graph and equal results.

    Args:
        vectors: ``float32`` or ``int8``.
        width: Dimensions.
        expansion: Documents that a search keeps on its way: the more, the closer to exact search.

    Raises:
        UserError: The library is not installed.
    """

    def __init__(self, vectors: str, width: int, expansion: int) -> None:
        if problem := lacking():
            raise UserError(problem)
        from usearch.index import Index

        # Angles do not depend on the scale of a vector, so codes need none here.
        self._index: Any = Index(ndim=width, metric="cos", dtype=TYPES[vectors], expansion_search=expansion)

    def add(self, codes: Array) -> None:
        """Take further documents, ``[n, d]``, as floats or 8-bit codes."""
        first = len(self._index)
        self._index.add(np.arange(first, first + len(codes)), np.ascontiguousarray(codes), threads=1)

    def near(self, codes: Array, count: int) -> list[Array]:
        """Return the places of documents near each query, in order of places.

        Args:
            codes: Queries, ``[q, d]``, as the documents are held.
            count: Documents of each.
        """
        if not len(self._index):
            return [np.empty(0, dtype=np.int64) for _ in codes]
        wanted = min(count, len(self._index))
        found = (self._index.search(np.ascontiguousarray(row), wanted, threads=1).keys for row in codes)
        return [np.sort(np.asarray(keys, dtype=np.int64)) for keys in found]

    @property
    def bytes(self) -> int:
        """Bytes of the graph and its vectors, as a file of it has them."""
        return int(self._index.serialized_length)
