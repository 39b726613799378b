"""SpanBERT's boundary objective: each hidden token of a span from the two tokens outside of it and its place in it.

``y_i = f(x_{s-1}, x_{e+1}, p_{i-s+1})``, f two dense layers with GELU and LayerNorm; its loss is added to the
masked-language loss with weight 1.

Source: Joshi et al. 2020 (1907.10529).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from eval.encoding import IGNORED
from teachers.anatomy.encoder import shape_of, word_embeddings
from teachers.data.encoded_dataset import Batch
from teachers.pretraining.prediction_heads import Answered, Head, begin_with

POSITIONS = 200
"""Width of a position's vector."""


class SpanVectors(nn.Module):
    """From the hidden states at the ends of spans to a vector for each token inside.

    Args:
        width: Width of the hidden states.
        longest: Most tokens of a span; those after it share a vector.
        positions: Width of a position's vector.
        outputs: Width of the result; that of the hidden states by default.
    """

    def __init__(self, width: int, longest: int = 30, positions: int = POSITIONS, outputs: int | None = None) -> None:
        super().__init__()
        self.places = nn.Embedding(longest, positions)
        self.layers = nn.Sequential(
            nn.Linear(2 * width + positions, width),
            nn.GELU(),
            nn.LayerNorm(width),
            nn.Linear(width, outputs or width),
            nn.GELU(),
            nn.LayerNorm(outputs or width),
        )

    def forward(self, hidden: Tensor, places: Tensor) -> Tensor:
        """Return a vector for each hidden token, ``[N, outputs]``, to be compared with the word embeddings.

        Args:
            hidden: ``[B, L, width]``.
            places: For each hidden token its row, the places before and after its span, and its number in it,
                ``[N, 4]``.
        """
        row, before, after, number = places.unbind(1)
        longest = self.places.num_embeddings
        ends = (hidden[row, before], hidden[row, after], self.places(number.clamp_max(longest - 1)))
        vectors: Tensor = self.layers(torch.cat(ends, dim=-1))
        return vectors


class SpanBoundaryHead(Head):
    """Words from the ends of spans, decoded with the network's word embeddings and a bias of its own.

    Args:
        network: The network.
    """

    def __init__(self, network: Any) -> None:
        super().__init__("span_boundary")
        table = word_embeddings(network)
        self.vectors = SpanVectors(shape_of(network.config).hidden_size, outputs=table.embedding_dim)
        self.bias = nn.Parameter(torch.zeros(table.num_embeddings))
        self._table = (table,)  # not a part of this module

    def begin(self, frequencies: Tensor) -> None:
        """Set the head's own bias."""
        begin_with(self.bias, frequencies)

    def forward(self, hidden: Tensor, batch: Batch) -> dict[str, Answered]:
        """Answer for every hidden token."""
        labels = batch.targets[self.target]
        rows, columns = (labels != IGNORED).nonzero(as_tuple=True)
        around = [batch.targets[name][rows, columns] for name in ("span_before", "span_after", "span_number")]
        vectors = self.vectors(hidden, torch.stack([rows, *around], dim=1))
        return {self.target: Answered(vectors @ self._table[0].weight.T + self.bias, labels[rows, columns])}
