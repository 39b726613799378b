"""A table of word embeddings that is the product of two, and the decoder of words that is tied to it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class FactorisedEmbedding(nn.Module):
    """``P · table[id]``, table ``[V, size]`` and P ``[d, size]``.

    Args:
        num_embeddings: V.
        embedding_dim: d.
        size: Channels between.
        padding_idx: The row that gets no gradient by look-up, if there is one.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, size: int, padding_idx: int | None = None) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.size, self.padding_idx = size, padding_idx
        self.table = nn.Embedding(num_embeddings, size, padding_idx)
        self.project = nn.Linear(size, embedding_dim, bias=False)

    def describe(self) -> dict[str, Any]:
        """Return the arguments of the class."""
        names = ("num_embeddings", "embedding_dim", "size", "padding_idx")
        return {name: getattr(self, name) for name in names}

    def product(self) -> Tensor:
        """Return the table that the two stand for, ``[V, d]``."""
        return self.table.weight @ self.project.weight.T

    def forward(self, ids: Tensor) -> Tensor:
        """Return ``[..., d]`` for ids ``[...]``."""
        vectors: Tensor = self.project(self.table(ids))
        return vectors


class FactorisedDecoder(nn.Module):
    """``table · (Pᵀ x) + bias``: the logits of all words, from the two factors of the embeddings themselves.

    Args:
        in_features: Channels of x.
        out_features: V.
        size: Channels between.
        bias: Whether there is one.
    """

    def __init__(self, in_features: int, out_features: int, size: int, bias: bool = True) -> None:
        super().__init__()
        self.in_features, self.out_features, self.size = in_features, out_features, size
        self.table = nn.Linear(size, out_features, bias=False)  # a module: masks and codes of the table reach it
        self.project = nn.Parameter(torch.zeros(in_features, size))
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None

    def describe(self) -> dict[str, Any]:
        """Return the arguments of the class."""
        sizes = {name: getattr(self, name) for name in ("in_features", "out_features", "size")}
        return {**sizes, "bias": self.bias is not None}

    def forward(self, states: Tensor) -> Tensor:
        """Return ``[..., V]`` for ``[..., d]``."""
        scores: Tensor = self.table(states @ self.project)
        return scores if self.bias is None else scores + self.bias
