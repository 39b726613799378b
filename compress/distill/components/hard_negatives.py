"""Mined hard negatives: the passages nearest to a query that are not likely to be right."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (the field's own abbreviation)

from teachers.data.pair_rows import TextPairs

SCORES = 1 << 26
"""Most scores of queries and passages that are held at once."""


def mined(pairs: TextPairs, vectors: Tensor, count: int, margin: float) -> dict[int, list[int]]:
    """Return for the row of every query the rows of its hard negatives, the nearest first.

    Args:
        pairs: The queries and passages.
        vectors: Of every row, by the model that mines, ``[rows, d]``.
        count: Most negatives of a query.
        margin: As for ``hard_negatives``.
    """
    scaled, found = F.normalize(vectors, dim=-1), dict[int, list[int]]()
    columns = list({number: row for row, number in pairs.passages.items()}.values())  # each text once
    queries, block = list(pairs.queries), max(1, SCORES // max(1, len(columns)))
    for start in range(0, len(queries), block):
        rows = queries[start : start + block]
        scores = scaled[rows] @ scaled[columns].T
        right = (scaled[rows] * scaled[[row + 1 for row in rows]]).sum(dim=-1)
        chosen = hard_negatives(scores, right, pairs.belong_together(rows, columns), count, margin)
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
