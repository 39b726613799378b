"""Which rows are queries and which passages, where pairs train an embedder; and the hard negatives of each query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (the field's own abbreviation)

from teachers.data.encoded_dataset import EncodedDataset
from teachers.data.example_pairs import matching

BLOCK = 1024
"""Queries that are compared with all passages at once."""


@dataclass(frozen=True)
class TextPairs:
    """Which rows are the queries and passages of pairs; equal texts have one number.

    Attributes:
        queries: Row of the query of every pair that belongs together -> number of its text; its passage is the row
            after it.
        passages: Row of every passage, of other pairs too -> number of its text.
        known: Number of a query -> those of the passages that belong to it.
    """

    queries: Mapping[int, int]
    passages: Mapping[int, int]
    known: Mapping[int, Sequence[int]]

    @classmethod
    def of(cls, rows: EncodedDataset) -> TextPairs:
        """Find the pairs of an embedding task, each of whose texts is a row."""
        belongs, number_of = matching(rows.examples), dict[tuple[str, str], int]()
        queries, passages, known = dict[int, int](), dict[int, int](), dict[int, list[int]]()
        for row, (one, following) in enumerate(pairwise(feature.example for feature in rows.features)):
            if one != following:
                continue
            query, passage = (
                number_of.setdefault((side, str(rows.examples[one][side])), len(number_of))
                for side in ("text_a", "text_b")
            )
            passages[row + 1] = passage
            if belongs[one]:
                queries[row] = query
                known.setdefault(query, []).append(passage)
        return cls(queries, passages, known)

    def belong_together(self, queries: Sequence[int], passages: Sequence[int]) -> Tensor:
        """Return whether the data pairs the texts of these rows anywhere, ``[queries, passages]``."""
        columns = np.array([self.passages[row] for row in passages])
        return torch.from_numpy(np.stack([np.isin(columns, self.known[self.queries[row]]) for row in queries]))

    def mined(self, vectors: Tensor, count: int, margin: float) -> dict[int, list[int]]:
        """Return for the row of every query the rows of its hard negatives, the nearest first.

        Args:
            vectors: Of every row, by the model that mines, ``[rows, d]``.
            count: Most negatives of a query.
            margin: As for ``hard_negatives``.
        """
        scaled, found = F.normalize(vectors, dim=-1), dict[int, list[int]]()
        columns = list({number: row for row, number in self.passages.items()}.values())  # each text once
        for start in range(0, len(self.queries), BLOCK):
            rows = list(self.queries)[start : start + BLOCK]
            scores = scaled[rows] @ scaled[columns].T
            right = (scaled[rows] * scaled[[row + 1 for row in rows]]).sum(dim=-1)
            chosen = hard_negatives(scores, right, self.belong_together(rows, columns), count, margin)
            found |= {row: [columns[place] for place in own] for row, own in zip(rows, chosen, strict=True)}
        return found


def hard_negatives(scores: Tensor, right: Tensor, known: Tensor, count: int, margin: float) -> list[list[int]]:
    """Return for every query the passages with the best scores that are not likely to be right, the best first.

    TopK-PercPos of de Souza P. Moreira et al. 2024, arXiv 2407.15831.

    Args:
        scores: Of queries and passages, ``[n, p]``.
        right: Score of each query's own passage, ``[n]``.
        known: Which passages are right, ``[n, p]``.
        count: Most passages for a query.
        margin: Passages above this share of the right one's score are left out.

    Examples:
        >>> import torch
        >>> scores = torch.tensor([[0.8, 0.79, 0.7, 0.1]])
        >>> hard_negatives(scores, scores[:, 0], scores == 0.8, count=2, margin=0.95)
        [[2, 3]]
    """
    allowed = scores.masked_fill(known.to(scores.device) | (scores > margin * right[:, None]), -torch.inf)
    best = allowed.topk(min(count, scores.shape[1]), dim=1)
    pairs = zip(best.values.tolist(), best.indices.tolist(), strict=True)
    return [[place for value, place in zip(*own, strict=True) if value > -torch.inf] for own in pairs]
