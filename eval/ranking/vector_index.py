"""An index of documents' vectors that take fewer bytes: 8-bit integers or signs, fewer dimensions, exact search."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from eval.errors import UserError
from eval.examples import Array
from eval.ranking.best import Best, largest, unit
from eval.ranking.index_fields import IndexFields

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
        candidates: For ``rescore``: documents of a query that the second stage ranks.

    Examples:
        >>> IndexForm(vectors="binary", dimensions=256, rescore="int8").title
        'binary 256, 400 rescored by int8'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    vectors: Vectors = "float32"
    dimensions: int | None = Field(default=None, ge=1)
    rescore: Vectors | None = None
    candidates: int = Field(default=400, ge=1)

    @model_validator(mode="after")
    def _rescores_signs(self) -> IndexForm:
        if self.rescore is not None and self.vectors != "binary":
            raise ValueError(f"rescore: {self.vectors} vectors are ranked by their products at once; leave it out")
        if self.rescore is None and "candidates" in self.model_fields_set:
            raise ValueError("candidates: nothing ranks them again; say how they are held: rescore, or leave it out")
        return self

    @property
    def title(self) -> str:
        """What reports call it."""
        return self.fields.title

    @property
    def fields(self) -> IndexFields:
        """Its fields, as a certificate has them."""
        candidates = None if self.rescore is None else self.candidates
        return IndexFields(self.vectors, self.dimensions, self.rescore, candidates)

    def bytes_of(self, documents: int, width: int) -> int:
        """Return the bytes that the vectors of so many documents take, of an embedder with so many dimensions."""
        return self.fields.size(documents, width).bytes


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
    """Documents by their vectors, in one of the forms, for exact search with numpy.

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

    def add(self, vectors: Array) -> None:
        """Take further documents; as many as are added at a time are compared with queries at a time.

        Args:
            vectors: ``[n, d]``, of any length.

        Raises:
            UserError: They have fewer dimensions than the form holds.
        """
        rows = self._cut(vectors)
        self._parts.append([CODED[form](rows) for form in self.form.fields.held])

    def search(self, queries: Array, count: int) -> tuple[list[Array], list[Array]]:
        """Return the places of the best documents of each query, best first, and their scores.

        Of equal scores the document that was added first is the better one. Scores are cosines, of what is held.

        Args:
            queries: Vectors, ``[q, d]``, of any length.
            count: Documents of each; all of them, or of ``candidates``, where there are fewer.
        """
        asked, form = self._cut(queries), self.form
        first = hamming if form.vectors == "binary" else PRODUCTS[form.vectors]
        best = Best(len(asked), count if form.rescore is None else max(count, form.candidates))
        for part in self._parts:
            best.add(first(asked, part[0]))
        if form.rescore is None:
            return best.places, best.scores
        pairs = zip(asked, best.places, strict=True)
        found = [self._ranked_again(one[None], np.sort(places), count) for one, places in pairs]
        return [places for places, _ in found], [scores for _, scores in found]

    @property
    def bytes(self) -> int:
        """Bytes of all that is held of the documents."""
        return sum(array.nbytes for part in self._parts for codes in part for array in codes)

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
