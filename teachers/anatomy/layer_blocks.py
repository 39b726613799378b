"""The parts of a layer that hold weights, and whether they belong to attention or to the feed-forward network."""

from __future__ import annotations

from typing import Any, Literal

from torch import nn

from teachers.anatomy.attention_heads import ATTENTION as OVER_HEADS
from teachers.anatomy.encoder import (
    decoder_layer_names,
    family_of,
    layer_names,
    part_names,
)

Block = Literal["attention", "ffn", "other"]
ATTENTION = (*OVER_HEADS, "attention_norm")
"""Roles of the parts of an attention block, as are those that begin with ``cross_``; its norm belongs to it."""


def weighted_parts(model: Any, layer: nn.Module) -> dict[str, Block]:
    """Return path from the layer -> block, for the outermost modules of a layer that have weights of their own.

    ``other`` is what lies in neither block, such as the bottlenecks of MobileBERT. XLNet's attention, with
    its biases by head, is one part.

    Args:
        model: The model that the layer belongs to.
        layer: One of its layers, or of those of a decoder beside them.
    """
    roles = {path: role.partition(".")[0] for role, path in part_names(model, layer).items()}
    bare = {path.rpartition(".")[0] for path in family_of(model).tensors}
    found: dict[str, Block] = {}
    for path, module in layer.named_modules():
        inside = any(path.startswith(f"{outer}.") for outer in found)
        weighted = path in roles or any(tensor is not None for tensor in module._parameters.values())
        if inside or not weighted or next(module.parameters(), None) is None:
            continue
        role = roles.get(path, "")
        if role in ATTENTION or role.startswith("cross_") or path in bare:
            found[path] = "attention"
        else:
            found[path] = "ffn" if role.startswith(("ffn", "gated")) else "other"
    return found


def feed_forward_names(model: Any) -> list[str]:
    """Return the paths of the matrices of all feed-forward networks, each once; none of a model without layers."""
    if family_of(model).layers is None:
        return []
    found: dict[str, None] = {}
    for name in dict.fromkeys(layer_names(model) + decoder_layer_names(model)):
        layer = model.get_submodule(name)
        for path, block in weighted_parts(model, layer).items():
            if block == "ffn" and any(tensor.dim() > 1 for tensor in layer.get_submodule(path).parameters()):
                found[f"{name}.{path}"] = None
    return list(found)
