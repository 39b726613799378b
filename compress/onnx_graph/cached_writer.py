"""An encoder with a decoder as two graphs: one reads a source once, one writes with keys and values in a cache.

The first gives for each layer of the decoder the keys and values of the source, ``cross.N.key`` and ``cross.N.value``.
The second takes these, the source's ``attention_mask``, new tokens as ``input_ids`` and ``past.N.key`` and
``past.N.value`` of the tokens before, and returns ``logits`` and ``present.N.key`` and ``present.N.value``. Keys and
values are ``[batch, tokens, heads · head width]``; the first two axes of every input are dynamic.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from compress.onnx_graph.cached_decoder import MORE, SIDES, CacheInGraph
from compress.onnx_graph.rewrites import Model
from compress.onnx_graph.tracing import AXES, OPSET, ROWS, TOKENS, distinct_inputs, ready, traced
from teachers.anatomy.attention_heads import head_size
from teachers.anatomy.encoder import decoder_layer_names, decoder_layers, family_of, layer_parts, part_names
from teachers.taskmodel import TaskModel

SOURCE = 5
"""By how many tokens the source that is traced is longer than the new tokens."""


def trace_reader(model: TaskModel, opset: int | None = None) -> tuple[Model, str]:
    """Return the graph that reads a source, and which exporter wrote it.

    Args:
        model: A network with an encoder and a decoder; it is left as it was.
        opset: Version of the ONNX operators; by default ``tracing.OPSET``.

    Raises:
        CompressError: If no exporter can.
    """
    with ready(model.model) as network:
        inputs = distinct_inputs(network.config, model.encoder.settings)
        outputs = dict.fromkeys(_names("cross", len(decoder_layers(network))), AXES)
        graph, exporter = traced(_Reader(network), inputs, outputs, opset or OPSET, model.name)
        _name_by_modules(graph, network)
        return graph, exporter


def _name_by_modules(graph: Model, network: Any) -> None:
    """Let the names of nodes, in place, begin at the network, of which the reader calls parts alone."""
    base, made_by = family_of(network).base, {name: node for node in graph.graph.node for name in node.output}
    for node in graph.graph.node if base else ():
        if node.name.startswith("encoder."):
            node.name = f"{base}.{node.name}"
    for place, layer in enumerate(decoder_layer_names(network)):
        parts = part_names(network, network.get_submodule(layer))
        for side in SIDES:
            path, node, number = f"{layer}.{parts[f'cross_{side}']}", made_by.get(f"cross.{place}.{side}"), 0
            while node is not None:
                node.name, number = f"{path}/{node.op_type}{f'_{number}' if number else ''}", number + 1
                before = [made_by[name] for name in node.input if name in made_by]
                node = before[0] if not node.op_type.startswith("MatMul") and before else None


def trace_writer(model: TaskModel, opset: int | None = None) -> tuple[Model, str]:
    """Return the graph that writes, and which exporter wrote it.

    Args:
        model: As for ``trace_reader``.
        opset: Likewise.

    Raises:
        CompressError: If no exporter can.
    """
    chance, width = torch.Generator().manual_seed(1), head_size(model.model.config)

    with ready(model.model) as network:
        made = distinct_inputs(network.config, model.encoder.settings)
        mask = torch.ones(ROWS, TOKENS + SOURCE, dtype=torch.long)
        mask[1, -SOURCE:] = 0
        inputs = {"input_ids": made["input_ids"], "attention_mask": mask}
        past: dict[str, Tensor] = {}
        for place, layer in enumerate(decoder_layers(network)):
            parts: dict[str, Any] = layer_parts(network, layer)
            for side in SIDES:
                own, other = parts[side].out_features, parts[f"cross_{side}"].out_features
                past[f"past.{place}.{side}"] = torch.randn(ROWS, TOKENS + MORE, own, generator=chance)
                inputs[f"cross.{place}.{side}"] = torch.randn(ROWS, TOKENS + SOURCE, other, generator=chance)
        inputs |= past
        outputs: dict[str, Any] = {"logits": AXES}
        outputs |= {name.replace("past", "present"): (AXES[0], "all") for name in past}
        axes = {name: (AXES[0], "source") for name in inputs if name.startswith("cross")}
        axes |= {"attention_mask": (AXES[0], "source"), **dict.fromkeys(past, (AXES[0], "before"))}
        return traced(_Writer(network, width), inputs, outputs, opset or OPSET, model.name, axes)


def _names(name: str, layers: int) -> list[str]:
    return [f"{name}.{place}.{side}" for place in range(layers) for side in SIDES]


class _Reader(torch.nn.Module):
    """Ids and mask in, keys and values of the source for each layer of the decoder out."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        states = self.model.get_encoder()(input_ids=ids, attention_mask=_hidden(mask)).last_hidden_state
        parts = [layer_parts(self.model, layer) for layer in decoder_layers(self.model)]
        return tuple(part[f"cross_{side}"](states) for part in parts for side in SIDES)


class _Writer(torch.nn.Module):
    """Ids, the source's mask, keys and values in; logits, and all keys and values of the tokens out."""

    def __init__(self, model: Any, width: int) -> None:
        super().__init__()
        self.model = model
        self.width = width

    def forward(self, ids: Tensor, mask: Tensor, *kept: Tensor) -> tuple[Tensor, ...]:
        half = len(kept) // 2
        cache = _BothCaches(kept[:half], kept[half:], self.width)
        before, new = kept[half].shape[1], ids.shape[1]
        places = torch.arange(before + new, device=ids.device)
        unseen = (places[None, :] > places[before:][:, None])[None, None].to(kept[0].dtype)
        found = self.model(
            encoder_outputs=BaseModelOutput(last_hidden_state=kept[0]),
            attention_mask=_hidden(mask),
            decoder_input_ids=ids,
            decoder_attention_mask=unseen * (torch.finfo(kept[0].dtype).min / 2),
            cache=cache,
            use_cache=True,
        )
        return (found.logits, *cache.self_attention_cache.present)


def _hidden(mask: Tensor) -> Tensor:
    """Return what is added to attention scores, ``[B, 1, 1, L]``."""
    return (1 - mask[:, None, None, :].float()) * (torch.finfo(torch.float32).min / 2)


class _BothCaches(EncoderDecoderCache):  # type: ignore[misc]
    """What the network's attention asks of a cache that knows the source already."""

    def __init__(self, cross: tuple[Tensor, ...], past: tuple[Tensor, ...], width: int) -> None:
        super().__init__(DynamicCache(), DynamicCache())
        self.self_attention_cache = CacheInGraph(past, width)
        for layer in range(len(cross) // 2):
            keys, values = (
                one.reshape(*one.shape[:2], -1, width).transpose(1, 2) for one in cross[2 * layer : 2 * layer + 2]
            )
            self.cross_attention_cache.update(keys, values, layer)
            self.is_updated[layer] = True
