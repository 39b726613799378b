"""Attention rollout: from which tokens the information in a head's input has come, by attention alone.

Source:
    Abnar and Zuidema 2020, Quantifying Attention Flow in Transformers, arXiv 2005.00928, section 3: heads are averaged,
    the residual connection counts as much as attention, and layers are multiplied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from teachers.anatomy.attention_heads import eager_attention
from teachers.anatomy.encoder import classifier_place, family_of, is_causal, layer_count
from teachers.taskmodel import evaluating


def rolled_out(maps: Sequence[Tensor]) -> Tensor:
    """Return from which tokens the last state of each token has come, ``[L, L]``; each row sums to 1.

    Args:
        maps: Attention probabilities of each layer, first to last, ``[heads, L, L]``; layers may differ in heads.

    Examples:
        >>> import torch
        >>> layer = torch.tensor([[[0.5, 0.5], [0.0, 1.0]]])
        >>> rolled_out([layer, layer]).tolist()
        [[0.5625, 0.4375], [0.0, 1.0]]
    """
    found = torch.eye(maps[0].shape[-1], dtype=maps[0].dtype, device=maps[0].device)
    for layer in maps:
        mixed = (layer.mean(dim=0) + torch.eye(len(found), dtype=layer.dtype, device=layer.device)) / 2
        found = (mixed / mixed.sum(dim=-1, keepdim=True)) @ found
    return found


def attention_rollout(network: Any, inputs: Mapping[str, Tensor]) -> NDArray[np.float64]:
    """Return from which tokens the state that the head reads has come, ``[L]``, with a sum of 1.

    Args:
        network: A classifier that ``no_attention`` says nothing of.
        inputs: One row without padding, ``[1, L]`` each.
    """
    maps = [layer[0].float() for layer in _maps(network, inputs)]
    rows, config = rolled_out(maps), network.config
    if getattr(config, "classifier_pooling", "cls") == "mean":
        row = rows.mean(dim=0)
    else:
        row = rows[-1 if is_causal(network) else classifier_place(config)]
    return np.asarray(row.cpu().numpy(), dtype=np.float64)


def no_attention(network: Any, inputs: Mapping[str, Tensor]) -> str:
    """Return why attention cannot be rolled out in a network; nothing if it can.

    Args:
        network: Any classifier.
        inputs: An input to try it with, ``[1, L]`` each.
    """
    name = type(network).__name__
    if not type(network).__module__.startswith("transformers."):
        return f"{name} returns no attention probabilities"
    if family_of(network).global_parts:
        return f"{name} returns attention probabilities of windows, not of all tokens"
    maps, layers, length = _maps(network, inputs), layer_count(network), inputs["input_ids"].shape[1]
    if len(maps) != layers:
        return f"{name} returns attention probabilities of {len(maps)} of its {layers} layers"
    strange = [tuple(one.shape) for one in maps if one.ndim != 4 or one.shape[2:] != (length, length)]
    return f"{name} returns attention probabilities of the shape {strange[0]}" if strange else ""


def _maps(network: Any, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    with evaluating(network), eager_attention(network):
        outputs = network(**inputs, output_attentions=True)
    return [one for one in outputs.get("attentions") or () if one is not None]
