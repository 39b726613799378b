"""What a loss reads of a network beside its logits: hidden states, queries, keys and values of chosen layers.

Nothing that is not asked for is computed or kept. Queries, keys and values are taken where the layer computes them,
by hooks, so the network keeps its fastest attention and no attention map is made for a layer that no loss reads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from eval.errors import UserError
from teachers.anatomy.encoder import (
    base_encoder,
    decoder_layers,
    family_of,
    layer_parts,
    layers,
)
from teachers.taskmodel import logits_of

PROJECTIONS = {"queries": "query", "keys": "key", "values": "value"}
"""Signal -> role of the module in a layer whose output it is."""

CROSS = {"cross_queries": "cross_query", "cross_keys": "cross_key"}
"""The same of a decoder's attention to the states of the encoder."""

INNER = ("hidden_states", *PROJECTIONS, *CROSS)
"""The signals beside the logits."""
BESIDE = ("exit_logits", "ponder")
"""Outputs of networks that have them, which are read whenever they are there."""


@dataclass(frozen=True)
class SignalSpec:
    """What a loss reads.

    Attributes:
        hidden_states: Places in ``hidden_states``: 0 is the embedding output, ``i + 1`` comes after layer ``i``.
        queries: Layers whose queries are read, before any rotation by position.
        keys: Layers whose keys are read, likewise.
        values: Layers whose values are read.
        logits: Whether the head's output is read; without it the head does not run, which is half of the work of a
            masked-language model.
        cross_queries: Layers of a decoder whose queries to the encoder's states are read.
        cross_keys: Layers of a decoder whose keys of these states are read.
    """

    hidden_states: tuple[int, ...] = ()
    queries: tuple[int, ...] = ()
    keys: tuple[int, ...] = ()
    values: tuple[int, ...] = ()
    logits: bool = True
    cross_queries: tuple[int, ...] = field(default=(), repr=False)  # names of caches of before stay
    cross_keys: tuple[int, ...] = field(default=(), repr=False)

    def __bool__(self) -> bool:
        """Whether anything beside logits is read."""
        return any(getattr(self, name) for name in INNER)

    def __or__(self, other: SignalSpec) -> SignalSpec:
        """Return what either of two losses reads."""
        places = {name: tuple(sorted({*getattr(self, name), *getattr(other, name)})) for name in INNER}
        return SignalSpec(**places, logits=self.logits or other.logits)


NOTHING = SignalSpec()
"""Nothing beside the logits."""


@dataclass(frozen=True)
class Signals:
    """A network's outputs for one batch.

    Attributes:
        logits: ``[B, C]``, ``[B, L, C]`` for tagging, qa and masked-lm, or the vectors ``[B, d]`` of embedding;
            empty if nobody reads them.
        hidden_states: ``[B, L, d]`` by place, those that were asked for.
        queries: ``[B, L, heads · head width]`` by layer, those that were asked for.
        keys: Likewise.
        values: Likewise.
        exit_logits: Logits of the classifiers before the last one ``[B, exits, C]``, of a network that has some.
        ponder: Ponder cost of each row ``[B]``, of a network that learns when to halt.
        cross_queries: ``[B, T, heads · head width]`` by layer of a decoder, for the T tokens that are written.
        cross_keys: ``[B, L, heads · head width]`` likewise, for the tokens that the encoder has read.
    """

    logits: Tensor
    hidden_states: Mapping[int, Tensor] = field(default_factory=dict)
    queries: Mapping[int, Tensor] = field(default_factory=dict)
    keys: Mapping[int, Tensor] = field(default_factory=dict)
    values: Mapping[int, Tensor] = field(default_factory=dict)
    exit_logits: Tensor | None = None
    ponder: Tensor | None = None
    cross_queries: Mapping[int, Tensor] = field(default_factory=dict)
    cross_keys: Mapping[int, Tensor] = field(default_factory=dict)

    def tensors(self) -> dict[tuple[str, int], Tensor]:
        """Return all that was read, by name and by place or layer."""
        inner = {(name, place): tensor for name in INNER for place, tensor in getattr(self, name).items()}
        single = {(name, 0): getattr(self, name) for name in ("logits", *BESIDE)}
        return inner | {key: tensor for key, tensor in single.items() if tensor is not None and tensor.numel()}

    @classmethod
    def of(cls, tensors: Mapping[tuple[str, int], Tensor]) -> Signals:
        """Return signals from what ``tensors`` gives."""
        found: dict[str, Any] = {name: tensors.get((name, 0)) for name in BESIDE}
        found |= {name: {place: tensor for (own, place), tensor in tensors.items() if own == name} for name in INNER}
        return cls(tensors.get(("logits", 0), torch.empty(0)), **found)


def observe(network: Any, inputs: Mapping[str, Tensor], wanted: SignalSpec = NOTHING) -> Signals:
    """Run a network and return what is wanted, with gradient if gradients are on.

    Args:
        network: A transformers model.
        inputs: Its inputs, ``[B, L]`` each.
        wanted: What is read.

    Raises:
        UserError: If the family computes queries, keys or values where they cannot be read.
    """
    extras = {"output_hidden_states": True} if wanted.hidden_states else {}
    with _taps(network, wanted) as seen:
        outputs = observed(network, wanted)(**inputs, **extras)
    every = outputs.get("hidden_states") or outputs.get("encoder_hidden_states")
    states = {place: every[place] for place in wanted.hidden_states}
    logits = logits_of(outputs, network.config, inputs["attention_mask"]) if wanted.logits else torch.empty(0)
    found: dict[str, Any] = {**seen, **{name: outputs.get(name) for name in BESIDE}}
    return Signals(logits, states, **found)


def observed(network: Any, wanted: SignalSpec) -> Any:
    """Return the part of a network that must run to see what is wanted: all of it, or all but its head."""
    return network if wanted.logits else base_encoder(network)


@contextlib.contextmanager
def _taps(network: Any, wanted: SignalSpec) -> Iterator[dict[str, dict[int, Tensor]]]:
    """Collect outputs of the wanted modules while the network runs once; a shared layer is counted at each pass."""
    seen: dict[str, dict[int, Tensor]] = {name: {} for name in (*PROJECTIONS, *CROSS)}
    handles = []
    try:
        for module, places in _tapped(network, wanted).items():
            handles.append(module.register_forward_hook(_collector(seen, places, family_of(network).time_first)))
        yield seen
    finally:
        for handle in handles:
            handle.remove()


Place = tuple[str, int, int | None]
"""Signal, layer, and which third of the module's output is it (of fewer heads, a smaller one); None for all of it."""


def _tapped(network: Any, wanted: SignalSpec) -> dict[nn.Module, list[list[Place]]]:
    """Return for each module that is read what its first, second … run gives."""
    found: dict[nn.Module, list[list[Place]]] = {}
    for name, role in CROSS.items():
        chosen = getattr(wanted, name)
        for index, layer in enumerate(decoder_layers(network) if chosen else ()):
            places: list[Place] = [(name, index, None)] if index in chosen else []
            found.setdefault(layer_parts(network, layer)[role], []).append(places)
    asked = {index for name in PROJECTIONS for index in getattr(wanted, name)}
    for index, layer in enumerate(layers(network) if asked else ()):
        parts = layer_parts(network, layer)
        for number, (name, role) in enumerate(PROJECTIONS.items()):
            if role in parts:
                module, third = parts[role], None
            elif "query_key_value" in parts:
                module, third = parts["query_key_value"], number
            elif index in getattr(wanted, name):
                family = family_of(network).model_type
                raise UserError(f"the {name} of {family} cannot be read: it has no module for them")
            else:
                continue
            runs = found.setdefault(module, [])
            if number == 0 or role in parts:
                runs.append([])
            if index in getattr(wanted, name):
                runs[-1].append((name, index, third))
    return {module: runs for module, runs in found.items() if any(runs)}


def _collector(seen: dict[str, dict[int, Tensor]], runs: list[list[Place]], time_first: bool) -> Callable[..., None]:
    remaining = iter(runs)

    def collect(_module: nn.Module, _args: Any, output: Tensor) -> None:
        for name, index, third in next(remaining, ()):  # DeBERTa's later runs are over positions
            own = output if third is None else output.chunk(len(PROJECTIONS), dim=-1)[third]
            seen[name][index] = own.transpose(0, 1) if time_first else own

    return collect
