"""What of a network no standard class can hold, as plain JSON: parts of other sizes, modules of our own, shared ones.

A network is compared with the standard network that its config describes; the difference is its *structure*, and a
standard network that is given a structure has the shape of the first one again. So a technique changes modules in
place, and saving and loading need no knowledge of it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
import transformers
from torch import nn

from compress.architectures import form_of
from compress.modules import built, described
from eval.errors import UserError

Structure = dict[str, Any]
"""``modules``: path -> description of a module of another size or kind; ``numbers``: path -> integers that a module
keeps about itself, such as its heads; ``shared``: path of a module or tensor -> the earlier path that is the same."""


def structure_of(network: Any) -> Structure:
    """Return what a standard network of the same config has not; empty if the network is standard.

    Raises:
        TypeError: If a part is of a kind that ``compress.modules`` does not know.
    """
    found: Structure = {"modules": {}, "numbers": {}, "shared": {}}
    if getattr(network.config, "quantization_config", None) is not None:
        return {}  # standard transformers knows what bitsandbytes made of it
    if form_of(network.config) == "module":
        return {}  # a module of somebody else's program, which only that program builds
    if not isinstance(network, transformers.PreTrainedModel):
        raise TypeError(f"{type(network).__name__} is no transformers model")
    stock = _blank(_Kind(network))
    _compare(network, stock, "", found, {})
    own, usual = _tied(network), _tied(stock)
    for name, first in own.items():
        if usual.get(name) != first or any(_within(place, found["modules"]) for place in (name, first)):
            found["shared"][name] = first
    if untied := [name for name in usual if name not in own and not _within(usual[name], found["modules"])]:
        raise TypeError(f"{', '.join(untied)}: a standard network shares these tensors, this one does not")
    return {name: part for name, part in found.items() if part}


def restructured(auto_class: Any, config: Any, structure: Structure) -> Any:
    """Return a network of this config with this structure; its weights are still to be loaded.

    Args:
        auto_class: The Auto class of the task's head.
        config: The standard config.
        structure: What ``structure_of`` returned.

    Raises:
        UserError: If the structure does not fit the config.
    """
    network = auto_class.from_config(config)
    try:
        for path, description in structure.get("modules", {}).items():
            network.set_submodule(path, built(description), strict=True)
        for path, numbers in structure.get("numbers", {}).items():
            for name, value in numbers.items():
                setattr(network.get_submodule(path), name, value)
        for path, first in structure.get("shared", {}).items():
            parent, _, name = path.rpartition(".")
            setattr(network.get_submodule(parent), name, _at(network, first))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"the structure does not fit the config: {error}") from error
    return network.eval()


def tensors_of(network: nn.Module) -> dict[str, torch.Tensor]:
    """Return every parameter and persistent buffer by name, shared ones once, under the first name."""
    found: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for path, module in network.named_modules():
        for name, tensor in _kept(module).items():
            if id(tensor) not in seen:
                seen.add(id(tensor))
                found[f"{path}.{name}" if path else name] = tensor
    return found


def _kept(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters and persistent buffers of a module itself."""
    buffers = {k: v for k, v in module._buffers.items() if k not in module._non_persistent_buffers_set}
    return {name: tensor for name, tensor in {**module._parameters, **buffers}.items() if tensor is not None}


class _Kind:
    """Class and config of a network, as the key of a cache: equal if all that they say is equal."""

    def __init__(self, network: Any) -> None:
        self.cls, self.config = type(network), network.config
        self._said = (self.cls, self.config.to_json_string(use_diff=False), self.config._attn_implementation)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Kind) and other._said == self._said

    def __hash__(self) -> int:
        return hash(self._said)


@lru_cache(maxsize=4)
def _blank(kind: _Kind) -> Any:
    """Return a standard network without weights; it is only looked at, so one serves all calls."""
    with torch.device("meta"):
        network = kind.cls._from_config(copy.deepcopy(kind.config))
        network.tie_weights()
    return network


def _compare(own: nn.Module, stock: nn.Module, path: str, found: Structure, seen: dict[int, str]) -> None:
    if id(own) in seen:
        found["shared"][path] = seen[id(own)]
        return
    if any(_kept(part) for part in own.modules()):
        seen[id(own)] = path
    if type(own) is not type(stock) or _sizes(own) != _sizes(stock):
        found["modules"][path] = described(own, path)
        with torch.device("meta"):
            twin = built(found["modules"][path])
        _compare_parts(own, twin, path, found, seen)
        return
    numbers = {name: value for name, value in _integers(own) if getattr(stock, name, None) != value}
    if numbers:
        found["numbers"][path] = numbers
    _compare_parts(own, stock, path, found, seen)


def _compare_parts(own: nn.Module, stock: nn.Module, path: str, found: Structure, seen: dict[int, str]) -> None:
    children, twins = own._modules, stock._modules
    if children.keys() != twins.keys():
        raise TypeError(f"{path}: {type(own).__name__} has the parts {list(children)}, a usual one {list(twins)}")
    for name, child in children.items():
        twin = twins[name]
        if child is not None and twin is not None:
            _compare(child, twin, f"{path}.{name}" if path else name, found, seen)


def _sizes(module: nn.Module) -> list[tuple[str, torch.Size]]:
    return [(name, tensor.shape) for name, tensor in module._parameters.items() if tensor is not None]


def _integers(module: nn.Module) -> Iterator[tuple[str, int]]:
    for name, value in vars(module).items():
        if type(value) is int and not name.startswith("_"):
            yield name, value


def _tied(network: nn.Module) -> dict[str, str]:
    """Return the name of every tensor that stands at an earlier name too, with that name; modules counted once."""
    first: dict[int, str] = {}
    found = {}
    for path, module in network.named_modules():
        for name, tensor in _kept(module).items():
            full = f"{path}.{name}" if path else name
            if first.setdefault(id(tensor), full) != full:
                found[full] = first[id(tensor)]
    return found


def _within(path: str, modules: dict[str, Any]) -> bool:
    return any(path.startswith(f"{module}.") for module in modules)


def _at(network: nn.Module, path: str) -> Any:
    parent, _, name = path.rpartition(".")
    return getattr(network.get_submodule(parent), name)
