"""What each axis of each tensor runs over: hidden channels, attention channels of a layer, its neurons.

With this, any structured cut is one line: choose the indices to keep of a *unit*, and cut every tensor along the
axes that run over that unit. Units are named

- ``hidden``: the channels of the residual stream, one choice for the whole model;
- ``embedding``: the channels of factorised word embeddings;
- ``heads``: the heads, where the layers share something by head (the tables of distances of MPNet and T5); one choice
  for the whole model;
- ``position``: the channels of XLNet's fixed sinusoids;
- ``<layer>:q``, ``<layer>:k``, ``<layer>:v``: the channels of all heads of a layer, head after head, of queries, keys,
  and of values and what leaves the heads; the first two must be cut alike. ``<layer>.cross:q`` … are those of a
  decoder's attention to the encoder;
- ``<layer>:ffn`` and, for MobileBERT's further networks, ``<layer>:ffn.0`` …: the neurons of a feed-forward network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from teachers.anatomy.encoder import (
    base_encoder,
    decoder_layer_names,
    decoder_layers,
    family_of,
    layer_names,
    layers,
    part_names,
    reshaped,
    shape_of,
)
from teachers.anatomy.family import PART_AXES


@dataclass(frozen=True)
class Axis:
    """One axis of a tensor.

    Attributes:
        dim: Its number.
        units: What it runs over; several units stand one after the other in parts of equal length.
        span: How many dimensions it takes: XLNet keeps heads and channels of a head in two.
    """

    dim: int
    units: tuple[str, ...]
    span: int = 1


def on_meta(build: Callable[[], Any]) -> Any:
    """Return the model that ``build`` makes, with its shapes but without memory for its weights."""
    with torch.device("meta"):
        return build().to("meta")  # XLNet makes some of its tensors on the CPU whatever the context says


def tensor_axes(model: Any) -> dict[str, tuple[Axis, ...]]:
    """Return the axes of every parameter of a model that run over a unit, by the parameter's name.

    The attention and the feed-forward networks are read from the table of families. The hidden and the embedding
    axes are found by trial: those that change in proportion when the same model is built with another hidden
    (embedding) size.
    """
    shape = shape_of(model.config)
    sizes = {"hidden": shape.hidden_size}
    if shape.embedding_size not in (None, shape.hidden_size):
        sizes["embedding"] = int(shape.embedding_size or 0)
    # One channel of embeddings can always be built, twice the hidden size keeps every head whole.
    probes = {"hidden": 2 * shape.hidden_size, "embedding": 1}
    tried = {unit: _shapes_with(model, **{f"{unit}_size": probes[unit]}) for unit in sizes}
    known = layer_axes(model) | _decoder_axes(model)
    found = {}
    for name, size in _shapes(model).items():
        axes = {axis.dim: axis for axis in known.get(name, ())}
        taken = {dim + i for dim, axis in axes.items() for i in range(axis.span)}
        for unit, shapes in tried.items():
            for dim, (now, then) in enumerate(zip(size, shapes[name], strict=True)):
                if dim not in taken and now != then and now * probes[unit] == then * sizes[unit]:
                    axes[dim] = Axis(dim, (unit,) * (now // sizes[unit]))
        found[name] = tuple(axes[dim] for dim in sorted(axes))
    return found


def _shapes_with(model: Any, **changes: int) -> dict[str, tuple[int, ...]]:
    config = reshaped(model.config, **changes)
    return _shapes(on_meta(lambda: type(model)(config)))


def _shapes(model: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters(remove_duplicate=False)}


def layer_axes(model: Any) -> dict[str, tuple[Axis, ...]]:
    """Return the axes of the attention and the feed-forward networks of every layer, by the parameter's name.

    What all layers share by head is among them.
    """
    found: dict[str, tuple[Axis, ...]] = {}
    if shared := family_of(model).head_bias:
        prefix = "" if base_encoder(model) is model else f"{family_of(model).base}."
        found[f"{prefix}{shared}.weight"] = (Axis(1, ("heads",)),)
    for name, layer in dict(zip(layer_names(model), layers(model), strict=True)).items():
        for path, spec in family_of(model).tensors.items():
            found[f"{name}.{path}"] = _parse(spec, name)
        found |= _part_axes(model, name, layer)
    return found


def _decoder_axes(model: Any) -> dict[str, tuple[Axis, ...]]:
    """Return the same of a decoder beside an encoder, and of the tables of distances that both stacks have in T5."""
    found: dict[str, tuple[Axis, ...]] = {}
    for name, layer in zip(decoder_layer_names(model), decoder_layers(model), strict=True):
        found |= _part_axes(model, name, layer)
    for name, _ in model.named_parameters(remove_duplicate=False) if found else ():
        if name.endswith("relative_attention_bias.weight"):
            found[name] = (Axis(1, ("heads",)),)
    return found


def _part_axes(model: Any, name: str, layer: Any) -> dict[str, tuple[Axis, ...]]:
    found: dict[str, tuple[Axis, ...]] = {}
    for role, path in part_names(model, layer).items():
        kind, _, number = role.partition(".")
        if kind in PART_AXES:
            owner = f"{name}.cross" if kind.startswith("cross_") else name
            axes = _parse(PART_AXES[kind], owner, f".{number}" if number else "")
            found[f"{name}.{path}.weight"] = axes
            found[f"{name}.{path}.bias"] = tuple(axis for axis in axes if axis.dim == 0)
    return found


def _parse(spec: str, layer: str, suffix: str = "") -> tuple[Axis, ...]:
    axes, dim = [], 0
    for word in spec.split():
        labels, _, span = word.partition(":")
        if labels == "position":
            axes.append(Axis(dim, ("position",)))
        elif labels != ".":
            units = tuple(f"{layer}:{label}{suffix}" for label in labels.split("|"))
            axes.append(Axis(dim, units, int(span or 1)))
        dim += int(span or 1)
    return tuple(axes)


def split(tensor: torch.Tensor, axis: Axis) -> tuple[torch.Tensor, ...]:
    """Return the parts of a tensor along an axis, one for each of the axis's units, that dimension moved first."""
    flat = tensor.flatten(axis.dim, axis.dim + axis.span - 1).movedim(axis.dim, 0)
    return flat.chunk(len(axis.units), dim=0)


def cut(
    tensor: torch.Tensor,
    axes: tuple[Axis, ...],
    keep: Mapping[str, torch.Tensor],
    scale: Mapping[str, float] | None = None,
) -> torch.Tensor:
    """Return a tensor with only the kept indices of each unit; an axis of two dimensions comes back as one.

    Args:
        tensor: A parameter.
        axes: Its axes, from ``tensor_axes``.
        keep: Unit -> int64 indices to keep, in their new order; a unit that is absent is kept whole.
        scale: Unit -> factor for what is kept of it; 1 where absent.
    """
    for axis in reversed(axes):
        if any(unit in keep for unit in axis.units):
            parts = [
                (part.index_select(0, keep[unit].to(part.device)) if unit in keep else part)
                * (scale or {}).get(unit, 1)
                for part, unit in zip(split(tensor, axis), axis.units, strict=True)
            ]
            tensor = torch.cat(parts).movedim(0, axis.dim)
    return tensor
