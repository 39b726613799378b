"""The matrices of a network that can be pruned, and how they are exchanged for modules of another kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from compress.modules.masked import LINEAR, TABLE, MaskedEmbedding, MaskedLinear, masked, plain
from teachers.anatomy.parts import exchange, matrices

KINDS = (*LINEAR, *TABLE)
"""What can be masked; other kinds of linear layers keep their weights in a form of their own."""


def prunable(network: Any, parts: Iterable[str]) -> dict[str, nn.Module]:
    """Return the matrices of these parts by path, one that several modules use once.

    Args:
        network: A transformers model.
        parts: Of ``layers``, ``embeddings`` (the embedding matrix) and ``pooler``.
    """
    found: dict[int, tuple[str, nn.Module]] = {}
    for part in parts:
        for path, module in matrices(network, part).items():
            if type(module) in KINDS:
                found.setdefault(id(module.weight), (path, module))
    return dict(found.values())


def with_tied(network: nn.Module, chosen: Sequence[nn.Module]) -> list[list[nn.Module]]:
    """Return for each chosen module all modules of the network that use its weight, itself first."""
    every = [module for module in network.modules() if getattr(module, "weight", None) is not None]
    return [[one, *(user for user in every if user.weight is one.weight and user is not one)] for one in chosen]


def mask_away(network: nn.Module, keep: Mapping[nn.Module, Tensor | None]) -> None:
    """Set pruned weights to 0 for good, in place: the modules, and those tied to them, become masked ones.

    Args:
        network: Holds the modules.
        keep: Module -> True where a weight stays, or None for the zeros that it has.
    """
    changes = {
        user: masked(user, keep[module])
        for module, users in zip(keep, with_tied(network, list(keep)), strict=True)
        for user in users
    }
    exchange(network, changes)


def unmask(network: nn.Module) -> None:
    """Make every masked module a standard one with the same weights, in place."""
    found = [module for module in network.modules() if isinstance(module, MaskedLinear | MaskedEmbedding)]
    exchange(network, {module: plain(module) for module in found})


def sparsity(network: nn.Module, paths: Iterable[str]) -> dict[str, Any]:
    """Return which share of the weights is 0, among the matrices at these paths and among all parameters."""
    pruned = [network.get_submodule(path).weight for path in paths]
    return {
        "pruned_matrices": len(pruned),
        "sparsity_of_pruned_matrices": _zeros(pruned),
        "sparsity_of_all_parameters": _zeros(list(network.parameters())),
    }


def _zeros(tensors: Sequence[Any]) -> float:
    count = sum(tensor.numel() for tensor in tensors)
    zeros = sum(tensor.numel() - int(torch.count_nonzero(tensor)) for tensor in tensors)
    return float(zeros / max(count, 1))
