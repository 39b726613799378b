"""Which rows are queries and which passages, where pairs of texts train an embedder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from teachers.data.encoded_dataset import EncodedDataset
from teachers.data.example_pairs import matching


@dataclass(frozen=True)
class TextPairs:
    """Which rows are the queries and passages of pairs; equal texts have one number, on either side.

    Attributes:
        queries: Row of the query of every pair that belongs together -> number of its text; its passage is the row
            after it.
        passages: Row of every passage, of other pairs too -> number of its text.
        known: Number of a query -> those of the passages that belong to it, and its own, which is no passage to find.
    """

    queries: Mapping[int, int]
    passages: Mapping[int, int]
    known: Mapping[int, Sequence[int]]

    @classmethod
    def of(cls, rows: EncodedDataset) -> TextPairs:
        """Find the pairs of a task with vectors, each of whose texts is a row."""
        belongs, number_of = matching(rows.spec, rows.examples), dict[str, int]()
        queries, passages, known = dict[int, int](), dict[int, int](), dict[int, list[int]]()
        for row, (one, following) in enumerate(pairwise(feature.example for feature in rows.features)):
            if one != following:
                continue
            query, passage = (
                number_of.setdefault(str(rows.examples[one][side]), len(number_of)) for side in ("text_a", "text_b")
            )
            passages[row + 1] = passage
            if belongs[one]:
                queries[row] = query
                known.setdefault(query, [query]).append(passage)
        return cls(queries, passages, known)

    def belong_together(self, queries: Sequence[int], passages: Sequence[int]) -> Tensor:
        """Return whether the data pairs the texts of these rows anywhere, or they are one, ``[queries, passages]``."""
        columns = np.array([self.passages[row] for row in passages])
        return torch.from_numpy(np.stack([np.isin(columns, self.known[self.queries[row]]) for row in queries]))
