"""Layers whose masks still change: weights under a mask get no gradient, and come back with it.

What an earlier step has pruned does not: of a masked layer the zeros stay, whatever the mask says.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (the field's own abbreviation)

from compress.modules.masked import is_masked, without_gradient_of_zeros


class GatedLinear(nn.Linear):
    """A linear layer with the effective weight ``mask · W``; what is masked gets no gradient.

    It has the parameters of another one, and exists only while a network is trained.
    """

    mask: Tensor

    def __init__(self, module: nn.Linear) -> None:
        super().__init__(module.in_features, module.out_features, module.bias is not None, device="meta")
        self.weight, self.bias, self.pruned = module.weight, module.bias, is_masked(module)
        self.register_buffer("mask", torch.ones_like(self.weight, dtype=torch.bool))

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's own name)
        """Return ``[…, out]`` of ``[…, in]``."""
        weight = without_gradient_of_zeros(self.weight) if self.pruned else self.weight
        return F.linear(input, weight * self.mask, self.bias)


class GatedEmbedding(nn.Embedding):
    """A table with the effective weight ``mask · W``; likewise."""

    mask: Tensor

    def __init__(self, module: nn.Embedding) -> None:
        super().__init__(module.num_embeddings, module.embedding_dim, module.padding_idx, device="meta")
        self.weight, self.pruned = module.weight, is_masked(module)
        self.register_buffer("mask", torch.ones_like(self.weight, dtype=torch.bool))

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's own name)
        """Return the rows ``[…, width]`` of ``[…]``."""
        rows = super().forward(input)
        return (without_gradient_of_zeros(rows) if self.pruned else rows) * self.mask[input]


Gated = GatedLinear | GatedEmbedding


def gated(module: nn.Module) -> Gated:
    """Return the layer with a mask that lets everything through.

    Raises:
        TypeError: If it is neither linear nor a table.
    """
    if isinstance(module, nn.Linear):
        return GatedLinear(module).train(module.training)
    if isinstance(module, nn.Embedding):
        return GatedEmbedding(module).train(module.training)
    raise TypeError(f"a {type(module).__name__} has no gates")
