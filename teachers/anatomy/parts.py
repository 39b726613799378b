"""Layers and matrices as parts that can be taken out, passed by, or put in another's place."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from teachers.anatomy.encoder import (
    base_encoder,
    decoder_layer_names,
    family_of,
    layer_names,
    layers,
    part_names,
    word_embeddings,
)


def matrices(model: Any, part: str) -> dict[str, nn.Module]:
    """Return the linear layers or the table of a part, by path; a shared layer stands there once.

    Args:
        model: A model with or without a head.
        part: ``layers`` (all linear layers in them, those of a decoder beside the encoder too), ``embeddings`` (the
            embedding matrix) or ``pooler`` (the dense layer after the first token that belongs to the encoder; the
            hidden layer of a head is none).
    """
    modules = dict(model.named_modules())
    if part == "embeddings":
        return {path: module for path, module in modules.items() if module is word_embeddings(model)}
    if part == "pooler":
        path = family_of(model).heads.get("dense", "").format(base=family_of(model).base)
        return {path: modules[path]} if "pooler" in path and path in modules else {}
    inside = tuple(f"{name}." for name in (*layer_names(model), *decoder_layer_names(model)))
    return {p: module for p, module in modules.items() if p.startswith(inside) and isinstance(module, nn.Linear)}


def matrix_roles(model: Any) -> dict[str, str]:
    """Return path -> role (``query``, ``ffn_in`` …, see ``families``) of the named parts of both stacks' layers."""
    return {
        f"{name}.{path}": role
        for name in dict.fromkeys((*layer_names(model), *decoder_layer_names(model)))
        for role, path in part_names(model, model.get_submodule(name)).items()
    }


def replace_parts(network: nn.Module, change: Callable[[nn.Module], nn.Module | None]) -> None:
    """Replace parts of a network in place; one that stands at several places is replaced by one.

    Args:
        network: Changed in place.
        change: Returns what takes the place of a part, or None.
    """
    made: dict[int, nn.Module | None] = {}
    old = [(parent, name, child) for parent in network.modules() for name, child in parent._modules.items()]
    for parent, name, child in old:
        if child is None:
            continue
        if id(child) not in made:
            made[id(child)] = change(child)
        new = made[id(child)]
        if new is not None:
            parent._modules[name] = new


def exchange(model: Any, changes: Mapping[nn.Module, nn.Module]) -> None:
    """Put other modules in the places of these, wherever they stand, in place."""
    replace_parts(model, changes.get)


def layer_output(model: Any, hidden: torch.Tensor) -> Any:
    """Return hidden states in the form in which a layer of this family returns them: alone, or first of a pair."""
    return (hidden, None) if family_of(model).returns_pair else hidden


def layer_differences(model: Any) -> str:
    """Return why one layer of this model cannot run in the place of another; nothing if it can."""
    family = family_of(model)
    if family.model_type == "albert":
        return "albert's layers share their weights"
    if family.layer_kinds:
        return f"{family.model_type} gives each layer what its own kind sees, global or local"
    modules = dict(base_encoder(model).named_modules())
    if any(path in modules for path in family.entry if path.endswith("conv")):
        return f"this {family.model_type} adds a convolution to what its first layer returns"
    return ""


Route = Callable[..., Any]
"""``route(index, own, hidden, *args, **kwargs)``, where ``own`` computes the layer: what the layer returns instead."""


@contextlib.contextmanager
def rerouted(model: Any, route: Route) -> Iterator[None]:
    """Let every call of a layer go through ``route`` for a while; names and weights of the network stay as they are.

    The layer itself is still what is called, so hidden states are collected after each, whatever was computed.

    Args:
        model: A model with or without a head.
        route: Its ``index`` counts from 0; a shared layer has another one in each of its runs.
    """
    places: dict[nn.Module, list[int]] = {}
    for index, layer in enumerate(layers(model)):
        places.setdefault(layer, []).append(index)
    for layer, indices in places.items():
        layer.forward = _Rerouted(layer.forward, route, indices)
    try:
        yield
    finally:
        for layer in places:
            del layer.forward


class _Rerouted:
    """The forward of one layer; a shared one is called in turn for each of its places."""

    def __init__(self, own: Callable[..., Any], route: Route, indices: list[int]) -> None:
        self.own, self.route, self.indices, self.calls = own, route, indices, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        index = self.indices[self.calls % len(self.indices)]
        self.calls += 1
        return self.route(index, self.own, *args, **kwargs)
