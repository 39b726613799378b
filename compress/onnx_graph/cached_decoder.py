"""A decoder as a graph that takes the keys and values of the tokens before, and returns them with the new ones.

Each layer has two inputs ``past.N.key`` and ``past.N.value`` and two outputs ``present.N.key`` and ``present.N.value``,
all ``[batch, tokens, heads of keys · head width]``; the first two axes of every input are dynamic, so a past of no
tokens gives the graph of whole texts. What is in the past counts as real; ``attention_mask`` tells of the new tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from compress.onnx_graph.rewrites import Model
from compress.onnx_graph.tracing import AXES, OPSET, ROWS, TOKENS, distinct_inputs, ready, traced
from teachers.anatomy.attention_heads import head_size, key_widths
from teachers.taskmodel import TaskModel

SIDES = ("key", "value")
MORE = 2
"""By how many tokens the past that is traced differs from the new tokens, so that nothing takes one for the other."""


def trace_with_cache(model: TaskModel, opset: int | None = None) -> tuple[Model, str]:
    """Return the graph of a decoder with its cache, and which exporter wrote it.

    Args:
        model: A decoder with a head for the next token; it is left as it was.
        opset: Version of the ONNX operators; by default ``tracing.OPSET``.

    Raises:
        CompressError: If no exporter can.
    """
    width = head_size(model.model.config)
    chance = torch.Generator().manual_seed(1)
    past = {
        f"past.{layer}.{side}": torch.randn(ROWS, TOKENS + MORE, channels, generator=chance)
        for layer, channels in enumerate(key_widths(model.model))
        for side in SIDES
    }
    outputs = {"logits": AXES} | {name.replace("past", "present"): (AXES[0], "all") for name in past}
    with ready(model.model) as network:
        inputs = distinct_inputs(network.config, model.encoder.settings) | past
        return traced(_WithCache(network, width), inputs, outputs, opset or OPSET, model.name)


class _WithCache(torch.nn.Module):
    """Ids, mask, and keys and values of each layer in; logits, and all keys and values out."""

    def __init__(self, model: Any, width: int) -> None:
        super().__init__()
        self.model = model
        self.width = width

    def forward(self, ids: Tensor, mask: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        cache = CacheInGraph(past, self.width)
        before, new = past[0].shape[1], ids.shape[1]
        places = torch.arange(before + new, device=ids.device)
        own = places[before:]
        real = torch.cat([torch.ones_like(past[0][:, :, 0]), mask.to(past[0].dtype)], dim=1)
        seen = (places[None, :] <= own[:, None])[None, None] & (real[:, None, None, :] > 0)
        hidden = (~seen).to(past[0].dtype) * torch.finfo(past[0].dtype).min
        found = self.model(input_ids=ids, attention_mask=hidden, position_ids=own[None], cache=cache, use_cache=True)
        return (found.logits, *cache.present)


class CacheInGraph:
    """What the network's attention asks of a cache: the keys and values of before with the new ones after them."""

    def __init__(self, past: tuple[Tensor, ...], width: int) -> None:
        self.past, self.width = past, width
        self.present: list[Tensor] = []

    def update(self, keys: Tensor, values: Tensor, layer: int, **_: Any) -> tuple[Tensor, Tensor]:
        """Return all keys and values of a layer, ``[B, heads, tokens, head width]``."""
        found = []
        for new, old in zip((keys, values), self.past[2 * layer : 2 * layer + 2], strict=True):
            every = torch.cat([old, new.transpose(1, 2).flatten(2)], dim=1)
            self.present.append(every)
            found.append(every.reshape(*every.shape[:2], -1, self.width).transpose(1, 2))
        return found[0], found[1]

    def get_seq_length(self, layer: int = 0) -> int:
        """Return how many tokens the past has."""
        return self.past[2 * layer].shape[1]
