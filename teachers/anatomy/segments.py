"""Some of a network's layers run on their own, so that what comes after them can be left out.

The family's own code runs each segment, and makes its masks and positions anew; the modules around the segment are
exchanged for ones that let hidden states through. Nothing is copied: a segment reads the weights of its network.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from teachers.anatomy.encoder import albert_groups, family_of, layer_count


def run_layers(
    network: Any,
    inputs: Mapping[str, Tensor],
    start: int,
    stop: int,
    hidden: Tensor | None = None,
    *,
    head: bool = True,
) -> Tensor:
    """Run the layers from ``start`` up to ``stop``, which is left out.

    Args:
        network: A network with a head, of a family with layers.
        inputs: Its inputs ``[B, L]``; ``input_ids`` are read where ``start`` is 0.
        start: First layer; the number of layers runs the head alone.
        stop: Layer before which it ends; the number of layers runs the head too.
        hidden: Hidden states ``[B, L, d]`` before layer ``start``; not read where it is 0.
        head: Whether the head follows the last layer, with the norm or pooler before it.

    Returns:
        Hidden states ``[B, L, d]``, or after the head the network's logits.
    """
    family, count = family_of(network), layer_count(network)
    encoder = getattr(network, family.base)
    ends = head and stop == count
    if not 0 <= start <= stop <= count or (start == stop and not ends):
        raise ValueError(f"layers {start} to {stop} of {count}")
    if stop - start < count:
        encoder = _only(encoder, start, stop)
    for path in (*(family.entry if start else ()), *(() if ends else family.closing)):
        encoder = exchanged(encoder, path, _Through())
    given: dict[str, Any] = dict(inputs)
    if start:
        given |= {"input_ids": None, "inputs_embeds": hidden}
    if not ends:
        states: Tensor = encoder(**given)[0]
        return states
    logits: Tensor = exchanged(network, family.base, encoder)(**given).logits
    return logits


def exchanged(module: Any, path: str, new: nn.Module) -> Any:
    """Return a shallow copy of a module with another module at ``path``, or itself if it has none there.

    Everything else is shared with the original, parameters included.
    """
    name, _, rest = path.partition(".")
    old = getattr(module, name, None)
    if old is None:
        return module
    twin = twin_of(module)
    twin._modules = {**module._modules, name: exchanged(old, rest, new) if rest else new}
    return twin


def twin_of(module: Any) -> Any:
    """Return a shallow copy of a module; where it is traced to ONNX, its operators are named like the original's."""
    twin = copy.copy(module)
    names = torch.jit._trace._trace_module_map
    if names is not None and module in names:
        names[twin] = names[module]
    return twin


def _only(encoder: Any, start: int, stop: int) -> Any:
    """Return a shallow copy of an encoder with these layers alone; they keep their names."""
    family = family_of(encoder)
    path = str(family.layers)
    modules = encoder.get_submodule(path)
    if family.model_type == "deberta-v2" and start == stop:
        return exchanged(encoder, path, nn.ModuleList([_SameStates()]))  # its loop must run once
    if family.model_type != "albert":
        kept = nn.ModuleList()
        kept._modules = {str(place): modules[place] for place in range(start, stop)}
        return exchanged(encoder, path, kept)
    # Its config says how often which group of shared weights runs.
    twin = exchanged(
        encoder, path, nn.ModuleList([modules[group] for group in albert_groups(encoder.config)[start:stop]])
    )
    runner = twin.get_submodule(path.rpartition(".")[0])
    runner.config = copy.copy(encoder.config)
    runner.config.num_hidden_layers = runner.config.num_hidden_groups = stop - start
    return twin


class _Through(nn.Module):
    """Stands for a module that is left out: its result is the last of the hidden states that it is given."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the last floating-point tensor among the arguments."""
        values = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        return [value for value in values if torch.is_floating_point(value)][-1]


class _SameStates(nn.Module):
    """Stands for a layer of DeBERTa that changes nothing."""

    def forward(self, states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        """Return the states, and no attention."""
        del args, kwargs
        return states, None
