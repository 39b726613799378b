"""An index of documents' vectors that take fewer bytes: 8-bit integers or signs, fewer dimensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from eval.errors import UserError
from eval.examples import Array
from eval.ranking.best import Best, largest, unit
from eval.ranking.index_fields import IndexFields, IndexSize
from eval.ranking.neighbour_graph import GRAPH_BYTES, TYPES, NeighbourGraph

Codes = tuple[Array, ...]
"""What is held of some documents: arrays with a row for each of them."""
Vectors = Literal["float32", "int8", "binary"]
HIGHEST = 127
"""The largest 8-bit code; -128 is not used, so codes are as many on both sides of 0."""


class IndexForm(BaseModel):
    """How an index holds the vectors of documents. Queries stay float32, except in a first stage.

    ``int8`` divides a vector by a scale of its own, its largest absolute number through 127, and rounds. One scale for
    each vector needs no calibration, and no document changes the code of another, as the usual ranges of each dimension
    would. ``binary`` holds the signs alone; documents are ranked by how many signs differ from those of the query (the
    Hamming distance). With ``rescore`` that is a first stage: the best ``candidates`` are ranked again by products of
    the float32 query, as in Yamada et al. 2021 (arXiv 2106.00882), with what ``rescore`` says is held of them.

    Attributes:
        vectors: ``float32``, ``int8`` or ``binary``: 4 bytes, 1 byte or 1 bit a dimension.
        dimensions: So many of the first dimensions are held, scaled to length 1 again; None for all. Models that were
            trained so (Matryoshka) lose little by it.
        rescore: For ``binary``: how candidates are held for the second stage. ``binary`` takes their signs again and
            adds no bytes; ``int8`` and ``float32`` are held beside the signs. None leaves the second stage out.
        candidates: For ``rescore``: documents of a query that the second stage ranks. For ``approximate``: those that
            are found in the graph and ranked by products.
        approximate: Whether documents are found by walking through a graph (HNSW, by the library ``usearch``), and not
            by comparing all of them; for ``float32`` and ``int8``.

    Examples:
        >>> IndexForm(vectors="binary", dimensions=256, rescore="int8").title
        'binary 256, 400 rescored by int8'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    vectors: Vectors = "float32"
    dimensions: int | None = Field(default=None, ge=1)
    rescore: Vectors | None = None
    candidates: int = Field(default=400, ge=1)
    # Left out of files while it says nothing, so those of other forms stay what they were.
    approximate: bool = Field(default=False, exclude_if=lambda value: not value)

    @model_validator(mode="after")
    def _rescores_signs(self) -> IndexForm:
        if self.approximate and self.vectors not in TYPES:
            raise ValueError(f"approximate: a graph holds {' or '.join(TYPES)} vectors, not {self.vectors}")
        if self.rescore is not None and self.vectors != "binary":
            raise ValueError(f"rescore: {self.vectors} vectors are ranked by their products at once; leave it out")
        if self.rescore is None and not self.approximate and "candidates" in self.model_fields_set:
            raise ValueError("candidates: nothing ranks them again; say how they are held: rescore, or leave it out")
        return self

    @property
    def title(self) -> str:
        """What reports call it."""
        found = f", {self.candidates} found by approximate search" if self.approximate else ""
        return f"{self.fields.title}{found}"

    @property
    def fields(self) -> IndexFields:
        """Its fields as a certificate has them, which speaks of exact search."""
        candidates = None if self.rescore is None else self.candidates
        return IndexFields(self.vectors, self.dimensions, self.rescore, candidates)

    def size(self, documents: int, width: int) -> IndexSize:
        """Return what so many documents take, of an embedder with so many dimensions; of a graph about as much."""
        found = self.fields.size(documents, width)
        return replace(found, bytes=found.bytes + documents * GRAPH_BYTES) if self.approximate else found

    def bytes_of(self, documents: int, width: int) -> int:
        """Return the bytes that the vectors of so many documents take, of an embedder with so many dimensions."""
        return self.size(documents, width).bytes


def int8_codes(rows: Array) -> Codes:
    """Return the codes ``[n, d]`` (int8) of vectors, and the scale ``[n]`` (float32) of each; zeros have the scale 1.

    Examples:
        >>> import numpy as np
        >>> codes, scales = int8_codes(np.array([[0.6, -0.8]], dtype=np.float32))
        >>> codes.tolist(), bool(abs(scales[0] - 0.8 / 127) < 1e-6)
        ([[95, -127]], True)
    """
    largest_of_each = np.abs(rows).max(axis=1)
    scales = np.where(largest_of_each > 0, largest_of_each / np.float32(HIGHEST), np.float32(1))
    return np.rint(rows / scales[:, None]).astype(np.int8), scales.astype(np.float32)


def sign_codes(rows: Array) -> Codes:
    """Return a bit for each number of vectors ``[n, d]``, 1 above 0, as bytes ``[n, ceil(d / 8)]``."""
    return (np.packbits(rows > 0, axis=1),)


def hamming(queries: Array, codes: Codes) -> Array:
    """Return how many signs of each query and document are the same, less those that differ, through all: from -1 to 1.

    Args:
        queries: Vectors, ``[q, d]``.
        codes: What ``sign_codes`` returned for the documents.
    """
    (asked,), (bits,), width = sign_codes(queries), codes, queries.shape[1]
    other = np.stack([np.bitwise_count(row ^ bits).sum(axis=1, dtype=np.int32) for row in asked])
    return np.asarray((1 - 2 * other / width).astype(np.float32))


def _signs(queries: Array, codes: Codes) -> Array:
    width = queries.shape[1]
    signs = np.unpackbits(codes[0], axis=1, count=width).astype(np.float32) * 2 - 1
    return np.asarray(queries @ signs.T / np.float32(np.sqrt(width)))


CODED: Mapping[str, Callable[[Array], Codes]] = {
    "float32": lambda rows: (rows,),
    "int8": int8_codes,
    "binary": sign_codes,
}
PRODUCTS: Mapping[str, Callable[[Array, Codes], Array]] = {
    "float32": lambda queries, codes: queries @ codes[0].T,
    "int8": lambda queries, codes: queries @ codes[0].T.astype(np.float32) * codes[1],
    "binary": _signs,
}
"""Products of float32 queries ``[q, d]`` with documents as they are held, ``[q, n]``."""


class VectorIndex:
    """Documents by their vectors, in one of the forms, for exact search with numpy, or approximate search.

    Args:
        form: How vectors are held.

    Examples:
        >>> import numpy as np
        >>> index = VectorIndex(IndexForm(vectors="int8"))
        >>> index.add(np.array([[1.0, 0.1], [0.0, 2.0], [-1.0, 0.0]]))
        >>> places, scores = index.search(np.array([[0.1, 1.0]]), count=2)
        >>> places[0].tolist(), index.bytes
        ([1, 0], 18)
    """

    def __init__(self, form: IndexForm) -> None:
        self.form = form
        self._parts: list[list[Codes]] = []
        self._graph: NeighbourGraph | None = None

    def add(self, vectors: Array) -> None:
        """Take further documents; as many as are added at a time are compared with queries at a time.

        Args:
            vectors: ``[n, d]``, of any length.

        Raises:
            UserError: They have fewer dimensions than the form holds, or the library of approximate search is lacking.
        """
        rows = self._cut(vectors)
        held = [CODED[form](rows) for form in self.form.fields.held]
        if self.form.approximate:
            self._graph = self._graph or NeighbourGraph(self.form.vectors, rows.shape[1], self.form.candidates)
            self._graph.add(held[0][0])
        self._parts.append(held)

    def search(self, queries: Array, count: int, exact: bool = False) -> tuple[list[Array], list[Array]]:
        """Return the places of the best documents of each query, best first, and their scores.

        Of equal scores the document that was added first is the better one. Scores are cosines, of what is held.

        Args:
            queries: Vectors, ``[q, d]``, of any length.
            count: Documents of each; all of them, or of ``candidates``, where there are fewer.
            exact: Whether all documents are compared although the form says ``approximate``.
        """
        asked, form = self._cut(queries), self.form
        if self._graph is not None and not exact:
            near = self._graph.near(CODED[form.vectors](asked)[0], form.candidates)
            return self._all_ranked_again(asked, near, count)
        first = hamming if form.vectors == "binary" else PRODUCTS[form.vectors]
        best = Best(len(asked), count if form.rescore is None else form.candidates)
        for part in self._parts:
            best.add(first(asked, part[0]))
        if form.rescore is None or not self._parts:
            return best.places, best.scores
        return self._all_ranked_again(asked, [np.sort(places) for places in best.places], count)

    @property
    def bytes(self) -> int:
        """Bytes of all that is held of the documents; of a graph those of a file, and what ranks what it finds."""
        arrays = [array for part in self._parts for codes in part for array in codes]
        if self._graph is None:
            return sum(array.nbytes for array in arrays)
        return self._graph.bytes + sum(array.nbytes for array in arrays if array.ndim == 1)  # it has the vectors

    def _all_ranked_again(self, queries: Array, near: list[Array], count: int) -> tuple[list[Array], list[Array]]:
        """Return the best of the documents near each query, whose places are in order."""
        pairs = zip(queries, near, strict=True)
        found = [self._ranked_again(one[None], places, count) for one, places in pairs]
        return [places for places, _ in found], [scores for _, scores in found]

    def _ranked_again(self, query: Array, places: Array, count: int) -> tuple[Array, Array]:
        """Return the best of some documents, whose places are in order, by products with what is held of them."""
        scores = PRODUCTS[self.form.rescore or self.form.vectors](query, self._held_of(places))[0]
        order = largest(scores, count)
        return places[order], scores[order]

    def _held_of(self, places: Array) -> Codes:
        """Return what the second stage reads of documents."""
        starts = np.cumsum([0, *(len(part[-1][0]) for part in self._parts)])
        owners = np.searchsorted(starts, places, side="right") - 1
        rows = [
            tuple(array[places[owners == number] - starts[number]] for array in self._parts[number][-1])
            for number in np.unique(owners).tolist()
        ]
        return tuple(np.concatenate(arrays) for arrays in zip(*rows, strict=True))

    def _cut(self, vectors: Any) -> Array:
        rows, wanted = np.asarray(vectors, dtype=np.float32), self.form.dimensions
        if wanted is not None and rows.shape[1] < wanted:
            raise UserError(f"index: dimensions: {wanted} were asked for, the vectors have {rows.shape[1]}")
        return unit(rows[:, :wanted])
