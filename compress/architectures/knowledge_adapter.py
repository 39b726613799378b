"""An adapter beside a frozen encoder, which reads the states of some of its layers and keeps what it learned to itself.

Source: Wang et al. 2020, arXiv 2002.01808 (K-Adapter).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertLayer

from compress.architectures.wrapped_encoder import added

START = 2e-4
"""Standard deviation of new projections, as in the authors' code: a new adapter passes on the states that it reads."""


class AdapterLayer(nn.Module):
    """``s + U T(D s)``: ``depth`` transformer layers T between two projections.

    Args:
        width: Channels of s.
        size: Channels of the transformer layers.
        depth: How many.
        heads: Their attention heads.
    """

    def __init__(self, width: int, size: int, depth: int, heads: int) -> None:
        super().__init__()
        config = BertConfig(
            hidden_size=size, num_attention_heads=heads, intermediate_size=4 * size, attn_implementation="eager"
        )
        self.down, self.up = nn.Linear(width, size), nn.Linear(size, width)
        self.layers = nn.ModuleList(BertLayer(config) for _ in range(depth))

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """Return ``[B, L, width]``.

        Args:
            states: s, ``[B, L, width]``.
            mask: What is added to attention scores, ``[B, 1, 1, L]``.
        """
        inner = self.down(states)
        for layer in self.layers:
            inner = layer(inner, mask)
        outputs: Tensor = states + self.up(inner)
        return outputs


class KnowledgeAdapter(nn.Module):
    """``a_k = f_k(h_{l_k} + a_{k-1})`` with ``a_0 = 0``: an adapter layer for each encoder layer ``l_k`` that it reads.

    The encoder reads nothing of it. The sum is that of the authors' code; the text of the paper speaks of a
    concatenation. Unlike their code, attention does not see padding.

    Args:
        width: Channels of the encoder's states.
        layers: Encoder layers that are read, from 0, in order.
        size: Channels within the adapter layers.
        depth: Transformer layers of each.
        heads: Attention heads of these.
        frozen: Whether it stays as it is in training.
    """

    def __init__(
        self, width: int, layers: Sequence[int], size: int, depth: int, heads: int, frozen: bool = False
    ) -> None:
        super().__init__()
        self.places, self.fixed = tuple(layer + 1 for layer in layers), frozen
        self.parts = nn.ModuleList(AdapterLayer(width, size, depth, heads) for _ in layers)

    def forward(self, hidden_states: Sequence[Tensor], mask: Tensor) -> Tensor:
        """Return the last adapter layer's states, ``[B, L, width]``.

        Args:
            hidden_states: The encoder's, the embeddings' output first.
            mask: 1 for real tokens, ``[B, L]``.
        """
        hidden = added(mask, hidden_states[0].dtype)[:, None]
        found = torch.zeros_like(hidden_states[0])
        for place, part in zip(self.places, self.parts, strict=True):
            found = part(hidden_states[place] + found, hidden)
        return found

    def start(self) -> None:
        """Give the projections new weights, from torch's own source of chance."""
        for part in self.parts:
            projections: tuple[Any, Any] = (part.down, part.up)
            for projection in projections:
                nn.init.normal_(projection.weight, std=START)
                nn.init.zeros_(projection.bias)


def adapter_fields(width: int, count: int, heads: int, head: Any) -> dict[str, Any]:
    """Return the arguments of a new ``KnowledgeAdapter`` as plain values, with what a recipe left open.

    Args:
        width: Channels of the encoder's states.
        count: Its layers.
        heads: Its attention heads.
        head: Has ``layers``, ``size``, ``depth`` and ``heads``; None takes the first, middle and last layer, three
            quarters of the width, and as many heads as the encoder has.
    """
    own = head.heads or heads
    layers = sorted({0, (count - 1) // 2, count - 1}) if head.layers is None else list(head.layers)
    size = head.size or max(width * 3 // 4 // own, 1) * own
    return {"layers": layers, "size": size, "depth": head.depth, "heads": own}


def unfit_fields(fields: dict[str, Any], count: int) -> list[str]:
    """Return what is wrong with such arguments over an encoder of ``count`` layers; nothing if they fit."""
    found = []
    layers = fields["layers"]
    if layers != sorted(set(layers)) or layers[-1] >= count:
        found.append(
            f"head: k_adapter.layers: got {', '.join(map(str, layers))}, must ascend and be below {count}, for the "
            f"encoder has {count} layers, which count from 0"
        )
    if fields["size"] % fields["heads"]:
        found.append(f"head: k_adapter.size: got {fields['size']}, must be a multiple of heads, {fields['heads']}")
    return found
