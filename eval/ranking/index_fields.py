"""The form of an index as plain values, for what reads it with the standard library alone: a certificate."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

NAMED = ", index "
"""What stands between the name of a model and the title of the form its documents were held in."""


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

    def plain(self) -> dict[str, Any]:
        """Return what ``IndexForm`` takes."""
        return {name: value for name, value in asdict(self).items() if value is not None}
