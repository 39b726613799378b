"""Attention heads of a network whose layers need not have equally many: counting them, and taking some away."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from eval.errors import UserError
from teachers.anatomy.axes import Axis, cut, layer_axes
from teachers.anatomy.encoder import attention_width, family_of, key_heads, layer_names, layer_parts, layers, shape_of
from teachers.anatomy.parts import exchange

ATTENTION = (
    "query",
    "key",
    "value",
    "query_key_value",
    "position_query",
    "position_key",
    "global_query",
    "global_key",
    "global_value",
    "attention_output",
)
"""Roles of the modules whose weights run over heads."""


@contextlib.contextmanager
def eager_attention(network: Any) -> Iterator[None]:
    """Let a network compute its attention in plain operators for a while, so that its probabilities can be seen."""
    usual = network.config._attn_implementation
    if usual == "eager":
        yield
        return
    network.set_attn_implementation("eager")
    try:
        yield
    finally:
        network.set_attn_implementation(usual)


def head_size(config: Any) -> int:
    """Return the channels of a head."""
    return attention_width(config) // shape_of(config).heads


def rotated_channels(config: Any) -> int:
    """Return how many channels of a head, its first ones, are rotated by position."""
    if not family_of(config).rotary:
        return 0
    share = (getattr(config, "rope_parameters", None) or {}).get("partial_rotary_factor", 1.0)
    return 2 * math.ceil(int(head_size(config) * share) / 2)


def head_counts(model: Any) -> list[int]:
    """Return for each layer how many heads it has; those of the config where it has no module that could tell."""
    size, usual = head_size(model.config), shape_of(model.config).heads
    found = []
    for layer in layers(model):
        width = getattr(layer_parts(model, layer).get("attention_output"), "in_features", None)
        found.append(usual if width is None else int(width) // size)
    return found


def key_widths(model: Any) -> list[int]:
    """Return for each layer the channels that all heads of its keys have together, and those of its values."""
    shared = shape_of(model.config).heads // key_heads(model.config)
    return [heads // shared * head_size(model.config) for heads in head_counts(model)]


def has_all_heads(model: Any) -> bool:
    """Whether every layer has as many heads as the config says."""
    return set(head_counts(model)) <= {shape_of(model.config).heads}


def shared_layers(model: Any) -> list[list[int]]:
    """Return the layers in groups that run one and the same attention; most families have groups of one."""
    groups: dict[int, list[int]] = {}
    for index, layer in enumerate(layers(model)):
        parts = layer_parts(model, layer)
        groups.setdefault(id(parts.get("query", parts.get("query_key_value", layer))), []).append(index)
    return list(groups.values())


def is_linear(part: nn.Module) -> bool:
    """Whether a module is a linear layer that keeps nothing but its weight and bias."""
    own = {*part._parameters, *part._buffers, *part._modules}
    return isinstance(part, nn.Linear) and own == {"weight", "bias"}


def uncuttable(model: Any) -> str:
    """Return why heads cannot be pruned in this network; nothing if they can."""
    queries, keys = shape_of(model.config).heads, key_heads(model.config)
    if keys < queries:
        name = family_of(model).model_type
        return (
            f"this {name} has {keys} heads of keys and values for {queries} of queries; heads that share cannot be cut"
        )
    for index, layer in enumerate(layers(model)):
        for role, part in _linear_parts(model, layer).items():
            if not is_linear(part):
                return (
                    "heads can only be cut while attention is made of ordinary linear layers, and the "
                    f"{role} of layer {index} is a {type(part).__name__}; cut heads before the step that made it"
                )
    return ""


def _linear_parts(model: Any, layer: nn.Module) -> dict[str, nn.Module]:
    """Return what should be a linear layer over heads, by role; XLNet's projection of distances by its path."""
    parts = {role: part for role, part in layer_parts(model, layer).items() if role in ATTENTION}
    owners = [path.removesuffix(".weight") for path in family_of(model).tensors if path.endswith(".weight")]
    return parts | {path: layer.get_submodule(path) for path in owners}


def keep_heads(model: Any, index: int, kept: Sequence[int]) -> None:
    """Keep some heads of a layer, in place: their rows of queries, keys and values, and their columns of the output.

    XLNet's biases and segments by head, and its projection of distances, lose theirs too.

    Args:
        model: A model of a family whose attention is made of linear layers.
        index: The layer; others that run the same module change with it.
        kept: Places of the heads among those that the layer has now, ascending.

    Raises:
        UserError: If a part of the attention is not an ordinary linear layer any more.
    """
    name, layer, size = layer_names(model)[index], layers(model)[index], head_size(model.config)
    if problem := uncuttable(model):
        raise UserError(problem)
    parts = _linear_parts(model, layer)
    channels = (torch.tensor(kept)[:, None] * size + torch.arange(size)).reshape(-1)
    chosen = {f"{name}:{unit}": channels for unit in ("q", "k", "v")}
    axes = layer_axes(model)
    every = model.named_modules(remove_duplicate=False)
    names = {id(part): path for path, part in every if path.startswith(f"{name}.")}
    for part in parts.values():
        for kind in part._parameters:
            _keep(part, kind, axes.get(f"{names[id(part)]}.{kind}", ()), chosen)
        if isinstance(part, nn.Linear):
            part.out_features, part.in_features = part.weight.shape
    for path in family_of(model).tensors:
        owner, _, kind = path.rpartition(".")
        if layer.get_submodule(owner) not in parts.values():
            _keep(layer.get_submodule(owner), kind, axes[f"{name}.{path}"], chosen)
    projection = parts["query"] if "query" in parts else parts["query_key_value"]
    if family_of(model).head_bias:
        _keep_columns(model, projection, kept)
    _number(model, projection, len(kept), len(channels))


def _keep(part: nn.Module, kind: str, axes: tuple[Axis, ...], chosen: Mapping[str, torch.Tensor]) -> None:
    """Cut a parameter of a module, if it is there; what has heads and their channels in two dimensions keeps them."""
    old = part._parameters[kind]
    if old is None:
        return
    new = cut(old.detach(), axes, chosen)
    for axis in axes:
        if axis.span > 1:
            inner = old.shape[axis.dim + 1 : axis.dim + axis.span]
            new = new.reshape(*new.shape[: axis.dim], -1, *inner, *new.shape[axis.dim + 1 :])
    setattr(part, kind, nn.Parameter(new.contiguous(), requires_grad=old.requires_grad))


def _keep_columns(model: Any, projection: nn.Module, kept: Sequence[int]) -> None:
    """Let the heads that are left of an attention read their own columns of the bias that all layers share."""
    from teachers.anatomy.head_bias import FewerHeads

    for old in _holders(model, projection):
        if len(kept) == old.num_attention_heads:
            continue
        columns = getattr(old, "chosen", range(shape_of(model.config).heads))
        new = FewerHeads([columns[place] for place in kept], head_size(model.config), old.o.out_features, old.dropout.p)
        for name, part in old.named_children():
            setattr(new, name, part)
        exchange(model, {old: new.to(projection.weight.device).train(old.training)})


def number_heads(model: Any, path: str) -> None:
    """Let an attention module know how many heads it has, after its queries (at ``path``) were cut."""
    query = model.get_submodule(path)
    _number(model, query, query.out_features // head_size(model.config), query.out_features)


def _number(model: Any, projection: nn.Module, heads: int, channels: int) -> None:
    for holder in _holders(model, projection):
        for name, value in zip(family_of(model).head_numbers, (heads, channels), strict=True):
            if name and hasattr(holder, name):
                setattr(holder, name, value)


def _holders(model: Any, part: nn.Module) -> list[Any]:
    """Return the modules that a part lies in: several where layers share it."""
    return [module for module in model.modules() if part in module.children()]
