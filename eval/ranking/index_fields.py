"""The form of an index, and its bytes, for what reads them with the standard library alone: a certificate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

NAMED = ", index "
"""What stands between the name of a model and the title of the form its documents were held in."""
BYTES: Mapping[str, Callable[[int], int]] = {
    "float32": lambda width: 4 * width,
    "int8": lambda width: width + 4,
    "binary": lambda width: -(-width // 8),
}
"""Bytes of a vector with so many dimensions."""


@dataclass(frozen=True)
class IndexSize:
    """What an index takes.

    Attributes:
        documents: Documents in it.
        width: Dimensions of the vectors that the embedder gives; an index may hold fewer.
        bytes: Bytes of all that is held of the documents.
    """

    documents: int
    width: int
    bytes: int


@dataclass(frozen=True)
class Approximation:
    """What approximate search finds of what exact search finds, among the same vectors.

    Attributes:
        top_10: Share of the ten best documents of exact search, a mean over queries.
        exact: The primary metric with exact search.
    """

    top_10: float
    exact: float


@dataclass(frozen=True)
class IndexFields:
    """The fields of ``eval.ranking.vector_index.IndexForm``, which checks them.

    Attributes:
        vectors: How vectors are held.
        dimensions: So many of the first are held; None for all.
        rescore: How candidates are held for a second stage; None without one.
        candidates: Documents of a query that the second stage ranks; None without one.

    Examples:
        >>> IndexFields("binary", 256, "int8", 400).title
        'binary 256, 400 rescored by int8'
    """

    vectors: str
    dimensions: int | None = None
    rescore: str | None = None
    candidates: int | None = None

    @property
    def title(self) -> str:
        """What reports call it."""
        cut = "" if self.dimensions is None else f" {self.dimensions}"
        second = "" if self.rescore is None else f", {self.candidates} rescored by {self.rescore}"
        return f"{self.vectors}{cut}{second}"

    @property
    def held(self) -> tuple[str, ...]:
        """The forms in which each vector is held, that of the first stage first."""
        if self.rescore is None or self.rescore == self.vectors:
            return (self.vectors,)
        return (self.vectors, self.rescore)

    def size(self, documents: int, width: int) -> IndexSize:
        """Return what so many documents take, of an embedder whose vectors have so many dimensions.

        Examples:
            >>> IndexFields("binary", rescore="int8", candidates=400).size(1000, 384).bytes
            436000
        """
        held = min(width, self.dimensions or width)
        return IndexSize(documents, width, documents * sum(BYTES[form](held) for form in self.held))

    def plain(self) -> dict[str, Any]:
        """Return what ``IndexForm`` takes."""
        return {name: value for name, value in asdict(self).items() if value is not None}
