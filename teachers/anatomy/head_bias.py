"""MPNet's relative positions: all layers add one table to their attention scores, and each head has a column of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder, MPNetSelfAttention

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


FARTHEST = 128
"""Distance from which on transformers' MPNet puts all distances into one bucket."""


@contextlib.contextmanager
def buckets_from_table(network: Any) -> Iterator[None]:
    """Let a network read the buckets of distances from a table for a while, in place of computing them by logarithms.

    The numbers stay the same. A runtime whose logarithm differs in the last bit would put distances such as 16 into
    another bucket, so a graph that is exported should hold none; bias and graph are also smaller.

    Args:
        network: Any network; one without MPNet inside stays as it is.
    """
    found: list[Any] = [module for module in network.modules() if isinstance(module, MPNetEncoder)]
    encoders = [encoder for encoder in found if "compute_position_bias" not in vars(encoder)]
    for encoder in encoders:
        encoder.compute_position_bias = _Tabled(encoder)
    try:
        yield
    finally:
        for encoder in encoders:
            del encoder.compute_position_bias


class _Tabled:
    """Gives the bias ``[1, heads, L, L]`` for hidden states ``[B, L, d]``."""

    def __init__(self, encoder: Any) -> None:
        self.table = encoder.relative_attention_bias
        self.buckets = encoder.relative_position_bucket(torch.arange(-FARTHEST, FARTHEST + 1))

    def __call__(self, states: Tensor) -> Tensor:
        places = torch.arange(states.shape[1], device=states.device)
        distances = (places[None, :] - places[:, None]).clamp(-FARTHEST, FARTHEST) + FARTHEST
        bias: Tensor = self.table(self.buckets.to(states.device)[distances]).permute(2, 0, 1)
        return bias[None]


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
