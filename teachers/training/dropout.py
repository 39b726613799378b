"""Dropout of a training: its probability may differ from the one that the network's config names."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

NUMBERS = ("dropout", "attention_dropout", "activation_dropout")
"""Names under which modules hold a probability for ``torch.nn.functional.dropout``."""


@contextlib.contextmanager
def dropout_set(networks: Iterable[nn.Module], probability: float | None) -> Iterator[None]:
    """Give every dropout of networks the same probability for a while: hidden states, attention, head.

    Configs stay as they are. What leaves out whole parts, as LayerDrop does layers and an answer network its steps, has
    a share of its own.

    Args:
        networks: Those that are trained, and what is trained beside them, such as ELECTRA's generator.
        probability: From 0 to below 1; None leaves all as it is.
    """
    own: list[tuple[Any, str, float]] = []
    if probability is not None:
        own = [found for network in networks for module in network.modules() for found in _probabilities(module)]
    for module, name, _ in own:
        setattr(module, name, probability)
    try:
        yield
    finally:
        for module, name, before in own:
            setattr(module, name, before)


def _probabilities(module: nn.Module) -> Iterator[tuple[nn.Module, str, float]]:
    """Yield (the module, an attribute, its value) of every probability that a module holds itself."""
    names = ("p",) if isinstance(module, nn.Dropout) else NUMBERS
    for name in names:
        if isinstance(value := vars(module).get(name), int | float):
            yield module, name, value
