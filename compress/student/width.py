"""Starting a narrower network from the weights of a wider one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from teachers.anatomy.attention_heads import rotated_channels
from teachers.anatomy.axes import Axis, cut, split, tensor_axes
from teachers.anatomy.encoder import (
    attention_width,
    decoder_layer_names,
    family_of,
    first_position,
    layer_names,
    shape_of,
)

RULE = (
    "kept are the hidden channels, heads, channels of a head and FFN neurons with the greatest product of the L2 norms "
    "of all weights that run over them; queries are scaled by the root of the new over the old channels of a head, "
    "where the family divides scores by that root"
)


@dataclass(frozen=True)
class Inheritance:
    """What became of the tensors of a new model.

    Attributes:
        copied: Names of tensors that were taken whole.
        cut: Names of tensors that were taken in part.
        new: Names of tensors that the source lacks or that do not fit; they keep their random weights.
    """

    copied: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)


def inherit(source: Any, target: Any) -> Inheritance:
    """Give ``target`` the weights of ``source``, both of one family and depth, in place; a narrower target gets a part.

    A *unit* is something that a width counts: the hidden channels (one choice for the whole network, so that the
    residual stream stays one), the heads of a layer, the channels of a head, the neurons of a feed-forward network.
    Index i of a unit is worth

        score(i) = sum over the weights W that run over the unit of  log || W[i] ||_2

    that is the product of the norms, in which no weight counts more than another for being larger. The best are kept,
    in their old order. Heads are judged by value and output weights, those of all layers together where they share
    columns of one position bias (MPNet, T5); the channels inside a kept head by query and key, and by value and output.
    With d of D channels of a head left, queries are multiplied by sqrt(d / D), so that the kept part of each attention
    score counts as before; not in T5 and GPT-Neo, which divide no score by sqrt(d). Channels with a fixed frequency
    (rotary positions, sinusoids of XLNet; all hidden channels of Marian, to which sinusoids are added) are kept at even
    distances, which keeps the frequencies. What no file holds, as those sinusoids, is what the target makes itself.

    A table with fewer positions than the target's is repeated.

    Args:
        source: The wider model.
        target: The narrower model; nothing of it may be wider.
    """
    axes, keep = {}, {}
    if _widths(source) != _widths(target):
        axes = tensor_axes(source)
        keep = _Choice(source, axes, target).keep()
    scale = _query_scale(source, target, keep)
    given = dict(source.named_parameters())
    positions = family_of(target).embeddings.get("positions", "").rpartition(".")[2]
    result = Inheritance()
    with torch.no_grad():
        for name, parameter in target.named_parameters():
            if name in _unsaved(target):
                continue
            if name not in given:
                result.new.append(name)
                continue
            old = given[name]
            tensor = cut(old, axes.get(name, ()), keep, scale)
            if positions and name.endswith(f"{positions}.weight"):  # a decoder has a table of its own
                tensor = _with_rows(tensor, len(parameter), first_position(target.config))
            if tensor.numel() != parameter.numel():
                result.new.append(name)
                continue
            parameter.copy_(tensor.reshape(parameter.shape))
            (result.copied if old.shape == parameter.shape else result.cut).append(name)
    return result


def inherit_outside(source: Any, target: Any) -> Inheritance:
    """Give ``target`` what ``source``, of the same family, has outside of its layers, in place; its layers stay.

    Taken are embeddings, what lies between them and the first layer, and the head: each tensor whose shape is the same.
    """
    inside = tuple(f"{name}." for name in (*layer_names(target), *decoder_layer_names(target)))
    given = {name: parameter for name, parameter in source.named_parameters() if not name.startswith(inside)}
    result = Inheritance()
    with torch.no_grad():
        for name, parameter in target.named_parameters():
            if name in given and given[name].shape == parameter.shape:
                parameter.copy_(given[name])
                result.copied.append(name)
            else:
                result.new.append(name)
    return result


def _with_rows(table: torch.Tensor, rows: int, first: int) -> torch.Tensor:
    """Return a table of positions with fewer rows, or with more: those from ``first`` on are then repeated in order.

    Source: Beltagy et al. 2020, arXiv 2004.05150, section 5.
    """
    if rows <= len(table):
        return table[:rows]
    places = torch.arange(rows - first, device=table.device) % (len(table) - first) + first
    return torch.cat([table[:first], table[places]])


def _widths(model: Any) -> tuple[int | None, ...]:
    shape = shape_of(model.config)
    return shape.hidden_size, shape.heads, shape.intermediate_size, shape.embedding_size


def _query_scale(source: Any, target: Any, keep: dict[str, torch.Tensor]) -> dict[str, float]:
    ratio = _head_size(target) / _head_size(source)
    scaled = family_of(target).scaled_scores and ratio != 1
    return {unit: math.sqrt(ratio) for unit in keep if unit.endswith(":q")} if scaled else {}


def _head_size(model: Any) -> int:
    return attention_width(model.config) // shape_of(model.config).heads


class _Choice:
    """Which indices of each unit are kept."""

    def __init__(self, source: Any, axes: dict[str, tuple[Axis, ...]], target: Any) -> None:
        self.source, self.target = source, target
        self.old, self.new = shape_of(source.config), shape_of(target.config)
        self.places: dict[str, list[tuple[torch.Tensor, Axis, int]]] = {}
        for name, parameter in source.named_parameters():
            for axis in axes[name]:
                for part, unit in enumerate(axis.units):
                    self.places.setdefault(unit, [])
                    if not name.endswith("bias"):
                        self.places[unit].append((parameter.detach(), axis, part))

    def keep(self) -> dict[str, torch.Tensor]:
        """Return the indices to keep of each unit that shrinks."""
        found = {}
        old, new = self.old, self.new
        if new.hidden_size < old.hidden_size:
            even = _even_pairs(old.hidden_size, new.hidden_size)
            best = _best(self.score(old.hidden_size, "hidden"), new.hidden_size)
            found["hidden"] = even if _unsaved(self.source) else best
            found["position"] = even
        if "embedding" in self.places and new.embedding_size != old.embedding_size:
            size, wanted = int(old.embedding_size or 0), int(new.embedding_size or 0)
            found["embedding"] = _best(self.score(size, "embedding"), wanted)
        for unit in self.places:
            layer, _, label = unit.partition(":")
            if unit == "heads" and new.heads < old.heads:
                found[unit] = self.heads()
            elif label == "q" and self.narrower_attention():
                found |= self.attention(layer)
            elif label.startswith("ffn") and new.intermediate_size < old.intermediate_size:
                found[unit] = _best(self.score(old.intermediate_size, unit), new.intermediate_size)
        return found

    def narrower_attention(self) -> bool:
        return self.new.heads < self.old.heads or _head_size(self.target) < _head_size(self.source)

    def attention(self, layer: str) -> dict[str, torch.Tensor]:
        """Choose heads, then channels inside each kept head, for q and k together and for v."""
        size, wanted = _head_size(self.source), _head_size(self.target)
        heads = self.heads() if "heads" in self.places else self.heads(layer)
        channels = self.old.heads * size
        both = self.score(channels, f"{layer}:q", f"{layer}:k").view(-1, size)
        value = self.score(channels, f"{layer}:v").view(-1, size)
        fixed, left = rotated_channels(self.source.config), rotated_channels(self.target.config)
        pairs = _even_pairs(fixed, left)
        match = torch.cat(
            [head * size + torch.cat([pairs, fixed + _best(both[head, fixed:], wanted - left)]) for head in heads]
        )
        carry = torch.cat([head * size + _best(value[head], wanted) for head in heads])
        return {f"{layer}:q": match, f"{layer}:k": match, f"{layer}:v": carry}

    def heads(self, *chosen: str) -> torch.Tensor:
        """Choose the heads of these layers alike; of all of them by default."""
        units = [f"{layer}:v" for layer in chosen] or [unit for unit in self.places if unit.endswith(":v")]
        return _best(self.score(self.old.heads, *units), self.new.heads)

    def score(self, items: int, *units: str) -> torch.Tensor:
        """Return the score of each of ``items`` equal pieces of the units, ``[items]`` in float64."""
        total = torch.zeros(items, dtype=torch.float64)
        for piece in self.pieces(*units):
            norms = piece.reshape(items, -1).double().norm(dim=1)
            total += norms.clamp_min(1e-12).log().cpu()
        return total

    def pieces(self, *units: str) -> Iterator[torch.Tensor]:
        for unit in units:
            for tensor, axis, part in self.places[unit]:
                yield split(tensor, axis)[part]


def _unsaved(model: Any) -> frozenset[str]:
    """Return the names of the parameters that no file of a model holds, for its width says them: Marian's sinusoids."""
    return frozenset(getattr(model, "_keys_to_ignore_on_save", None) or ())


def _best(scores: torch.Tensor, count: int) -> torch.Tensor:
    return scores.argsort(descending=True, stable=True)[:count].sort().values


def _even_pairs(old: int, new: int) -> torch.Tensor:
    """Return ``new`` of ``old`` channels whose second half repeats the frequencies of the first, evenly spread."""
    half = torch.arange(new // 2) * (old // 2) // max(new // 2, 1)
    return torch.cat([half, half + old // 2])
