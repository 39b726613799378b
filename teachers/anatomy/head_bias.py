"""MPNet's relative positions: all layers add one table to their attention scores, and each head has a column of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.mpnet.modeling_mpnet import MPNetSelfAttention

from teachers.anatomy.encoder import base_encoder, family_of, layers


def score_bias(model: Any, layer: int, length: int) -> Tensor | None:
    """Return what a layer adds to the scaled products of its queries and keys, by distance and head.

    Args:
        model: A model with or without a head.
        layer: The layer, from 0.
        length: Tokens of the input, L.

    Returns:
        ``[heads, L, L]`` with gradient if gradients are on; None for a family that adds nothing so.
    """
    path = family_of(model).head_bias
    if not path:
        return None
    holder = base_encoder(model).get_submodule(path.rpartition(".")[0])
    table = base_encoder(model).get_submodule(path).weight
    bias: Tensor = holder.compute_position_bias(table.new_empty(1, length, 0))[0]
    fewer = [module for module in layers(model)[layer].modules() if isinstance(module, FewerHeads)]
    return bias.index_select(0, fewer[0].columns) if fewer else bias


class FewerHeads(MPNetSelfAttention):  # type: ignore[misc]
    """MPNet's attention without some of its heads; those that are left read the columns that they have always read.

    Args:
        columns: For each head its column of the bias that all layers share.
        head_size: Channels of a head.
        hidden_size: Channels of the residual stream.
        dropout: Of attention probabilities.
    """

    def __init__(self, columns: Sequence[int], head_size: int, hidden_size: int, dropout: float) -> None:
        nn.Module.__init__(self)
        self.num_attention_heads, self.attention_head_size = len(columns), head_size
        self.all_head_size = len(columns) * head_size
        self.q, self.k, self.v = (nn.Linear(hidden_size, self.all_head_size) for _ in range(3))
        self.o = nn.Linear(self.all_head_size, hidden_size)
        self.dropout = nn.Dropout(dropout)
        self.chosen = tuple(columns)
        self.register_buffer("columns", torch.tensor(self.chosen), persistent=False)

    def describe(self) -> dict[str, Any]:
        """Return the arguments of the class."""
        sizes = {"head_size": self.attention_head_size, "hidden_size": self.o.out_features}
        return {"columns": list(self.chosen), **sizes, "dropout": self.dropout.p}

    def forward(
        self, hidden_states: Tensor, attention_mask: Any = None, position_bias: Any = None, **more: Any
    ) -> tuple[Tensor, ...]:
        """Return what the heads give, ``[B, L, d]``, first; ``position_bias`` is ``[B, all heads, L, L]``."""
        own = None if position_bias is None else position_bias.index_select(1, self.columns)
        found: tuple[Tensor, ...] = super().forward(hidden_states, attention_mask, own, **more)
        return found
