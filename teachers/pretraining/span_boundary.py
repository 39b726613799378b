"""SpanBERT's boundary objective: each hidden token of a span from the two tokens outside of it and its place in it.

``y_i = f(x_{s-1}, x_{e+1}, p_{i-s+1})``, f two dense layers with GELU and LayerNorm; its loss is added to the
masked-language loss with weight 1.

Source: Joshi et al. 2020 (1907.10529).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

POSITIONS = 200
"""Width of a position's vector."""


class SpanBoundary(nn.Module):
    """From the hidden states at the ends of spans to a vector for each token inside.

    Args:
        width: Width of the hidden states.
        longest: Most tokens of a span.
        positions: Width of a position's vector.
    """

    def __init__(self, width: int, longest: int = 30, positions: int = POSITIONS) -> None:
        super().__init__()
        self.places = nn.Embedding(longest, positions)
        self.layers = nn.Sequential(
            nn.Linear(2 * width + positions, width),
            nn.GELU(),
            nn.LayerNorm(width),
            nn.Linear(width, width),
            nn.GELU(),
            nn.LayerNorm(width),
        )

    def forward(self, hidden: Tensor, places: Tensor) -> Tensor:
        """Return a vector for each hidden token, ``[N, width]``, for the masked-language decoder.

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


def boundary_places(spans: list[list[list[int]]]) -> Tensor:
    """Return what ``SpanBoundary`` takes: for each token of each span its row, the places around it, and its number.

    Args:
        spans: For each row its spans, each a list of places that follow each other.
    """
    found = [
        (row, span[0] - 1, span[-1] + 1, number)
        for row, of_row in enumerate(spans)
        for span in of_row
        for number in range(len(span))
    ]
    return torch.tensor(found, dtype=torch.int64).reshape(-1, 4)
