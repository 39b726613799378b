"""A linear layer whose matrix is the product of two thin ones."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class LowRankLinear(nn.Module):
    """``y = B (A x) + bias``, A ``[rank, in]`` and B ``[out, rank]``.

    Args:
        in_features: Channels of x.
        out_features: Channels of y.
        rank: Channels between.
        bias: Whether there is one.
    """

    def __init__(self, in_features: int, out_features: int, rank: int, bias: bool = True) -> None:
        super().__init__()
        self.in_features, self.out_features, self.rank = in_features, out_features, rank
        self.first = nn.Linear(in_features, rank, bias=False)
        self.second = nn.Linear(rank, out_features, bias=bias)

    def describe(self) -> dict[str, Any]:
        """Return the arguments of the class."""
        sizes = {"in_features": self.in_features, "out_features": self.out_features, "rank": self.rank}
        return {**sizes, "bias": self.second.bias is not None}

    def product(self) -> Tensor:
        """Return the matrix that the two stand for, ``[out, in]``."""
        return self.second.weight @ self.first.weight

    def forward(self, inputs: Tensor) -> Tensor:
        """Return ``[..., out]`` for ``[..., in]``."""
        outputs: Tensor = self.second(self.first(inputs))
        return outputs
