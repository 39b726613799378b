"""Linear layers and tables with pruned weights: what is exactly 0 stays 0 through every later training.

The zeros are the mask, so there is nothing beside the weight that could be lost or come out of step with it: a copy, a
saved folder and a checkpoint hold the mask because they hold the weight. A zero gets no gradient, and an optimizer that
starts anew leaves a number without gradient where it is: AdamW's moments of it are 0, and so is the decay of 0.

What takes the place of such a layer asks ``is_masked`` and keeps its zeros: by ``without_gradient_of_zeros`` while it
is trained, and by a grid with an exact 0 where it rounds.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (the field's own abbreviation)
from torch.nn.utils import parametrize


class MaskedLinear(nn.Linear):
    """A linear layer whose weights ``[out, in]`` that are 0 are pruned; they are neither trained nor saved."""

    sparse_tensors = ("weight",)

    def describe(self) -> dict[str, Any]:
        """Return the arguments of its class."""
        return {"in_features": self.in_features, "out_features": self.out_features, "bias": self.bias is not None}

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's own name)
        """Return ``[…, out]`` of ``[…, in]``."""
        return F.linear(input, without_gradient_of_zeros(self.weight, _own_weight(self)), self.bias)


class MaskedEmbedding(nn.Embedding):
    """A table whose numbers ``[rows, width]`` that are 0 are pruned; they are neither trained nor saved."""

    sparse_tensors = ("weight",)

    def describe(self) -> dict[str, Any]:
        """Return the arguments of its class."""
        return {
            "num_embeddings": self.num_embeddings,
            "embedding_dim": self.embedding_dim,
            "padding_idx": self.padding_idx,
        }

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's own name)
        """Return the rows ``[…, width]`` of ``[…]``."""
        values, own = super().forward(input), _own_weight(self)
        return without_gradient_of_zeros(values, None if own is None else F.embedding(input, own))


LINEAR = (nn.Linear, MaskedLinear)
TABLE = (nn.Embedding, MaskedEmbedding)
"""The kinds of layers that hold one matrix in float, pruned or not."""


def is_masked(module: nn.Module) -> bool:
    """Whether the zeros of a layer's weight are pruned, and stay."""
    return isinstance(module, MaskedLinear | MaskedEmbedding)


def masked_parts(network: Any) -> frozenset[str]:
    """Return the parts of a transformer that hold pruned matrices: ``layers``, ``embeddings``, ``pooler``."""
    from teachers.anatomy.parts import matrices

    found = {part: matrices(network, part).values() for part in ("layers", "embeddings", "pooler")}
    return frozenset(part for part, modules in found.items() if any(map(is_masked, modules)))


def without_gradient_of_zeros(values: Tensor, own: Tensor | None = None) -> Tensor:
    """Return the same numbers, of which those that are pruned pass no gradient on; an exported graph gets nothing more.

    Args:
        values: What is computed with.
        own: The weights themselves, whose zeros are the pruned ones, if values are made from them, such as by rounding;
            of the same shape. A weight that is rounded to 0 is trained on.
    """
    traced: bool = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    if traced or torch.compiler.is_exporting() or not values.requires_grad:
        return values
    return torch.where((values if own is None else own) != 0, values, 0.0)


def _own_weight(module: nn.Module) -> Tensor | None:
    """Return the weight that a parametrization makes another one of; None without one."""
    if not parametrize.is_parametrized(module, "weight"):
        return None
    own: Tensor = module.parametrizations.weight.original  # type: ignore[union-attr, assignment]
    return own


def masked(module: nn.Module, keep: Tensor | None = None) -> MaskedLinear | MaskedEmbedding:
    """Return the masked kind of a linear layer or a table; it has the same parameters, so what is tied stays tied.

    Args:
        module: A linear layer or a table.
        keep: True where a weight stays, the shape of the weight; the others become +0.0, in place. None keeps the
            zeros that are there.

    Raises:
        TypeError: If the module is of another kind.
    """
    made: MaskedLinear | MaskedEmbedding
    if isinstance(module, nn.Linear):
        made = MaskedLinear(module.in_features, module.out_features, module.bias is not None, device="meta")
        made.bias = module.bias
    elif isinstance(module, nn.Embedding):
        made = MaskedEmbedding(module.num_embeddings, module.embedding_dim, module.padding_idx, device="meta")
    else:
        raise TypeError(f"a {type(module).__name__} has no masked kind")
    made.weight = module.weight
    if keep is not None:
        with torch.no_grad():
            made.weight.masked_fill_(~keep, 0.0)
    return made.train(module.training)


def plain(module: MaskedLinear | MaskedEmbedding) -> nn.Linear | nn.Embedding:
    """Return the standard kind of a masked module, with the same parameters; its zeros are then weights like others."""
    made: nn.Linear | nn.Embedding
    if isinstance(module, MaskedLinear):
        made = nn.Linear(module.in_features, module.out_features, module.bias is not None, device="meta")
        made.bias = module.bias
    else:
        made = nn.Embedding(module.num_embeddings, module.embedding_dim, module.padding_idx, device="meta")
    made.weight = module.weight
    return made.train(module.training)
