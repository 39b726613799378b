"""Layers whose masks follow from scores that are learned: straight-through, for single weights or whole blocks."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (the field's own abbreviation)

from compress.modules.masked import is_masked, without_gradient_of_zeros
from compress.prune.magnitude_ranking import cubic, keep_largest

Method = Literal["hard", "soft"]
LEAST_KEPT = 0.005
"""Share of a matrix that the threshold leaves, whatever the scores are, as in the authors' code."""


class ScoredLinear(nn.Linear):
    """A linear layer with the effective weight ``M(S) · W``; the scores S ``[out / rows, in / columns]`` begin at 0.

    ``dL/dW = dL/dW' · M``, and for all entries, pruned ones too, ``dL/dS = dL/dW' · W``, summed over a block. It has
    the parameters of another layer, and exists only while a network is trained. Weights that an earlier step has pruned
    stay 0, and are the first to go: they count among those that are not kept.

    Args:
        module: The layer.
        block: Rows and columns of the weight that have one score.
        method: ``hard``: the largest scores are kept, ``value`` is their share; ``soft``: those whose sigmoid is above
            ``value``.
        rate: Peak learning rate of the scores.
    """

    mask: Tensor

    def __init__(self, module: nn.Linear, block: tuple[int, int], method: Method, rate: float) -> None:
        super().__init__(module.in_features, module.out_features, module.bias is not None, device="meta")
        self.weight, self.bias, self.pruned = module.weight, module.bias, is_masked(module)
        self.block, self.method, self.rate = block, method, rate
        sizes = (module.out_features // block[0], module.in_features // block[1])
        self.scores = nn.Parameter(torch.zeros(sizes, device=module.weight.device))
        self.register_buffer("mask", torch.ones_like(self.scores, dtype=torch.bool))

    def rates(self) -> dict[str, float]:
        """Return the own learning rate of the scores."""
        return {"scores": self.rate}

    def choose(self, value: float) -> None:
        """Choose the mask by the present scores."""
        self.mask.copy_(chosen(self.scores, self.method, value, self._alive() if self.pruned else None))

    def _alive(self) -> Tensor:
        """Return whether there is anything left in each block."""
        sizes = [size for pair in zip(self.scores.shape, self.block, strict=True) for size in pair]
        return (self.weight.detach() != 0).reshape(sizes).transpose(1, 2).flatten(2).any(dim=2)

    def keep(self) -> Tensor:
        """Return True where a weight stays, ``[out, in]``."""
        return spread(self.mask, self.block)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's own name)
        """Return ``[…, out]`` of ``[…, in]``."""
        # The difference is 0 and carries the gradient: the backward pass of the mask is the identity on the scores.
        mask = self.mask + (self.scores - self.scores.detach())
        weight = without_gradient_of_zeros(self.weight) if self.pruned else self.weight
        return F.linear(input, weight * spread(mask, self.block), self.bias)


def chosen(scores: Tensor, method: Method, value: float, alive: Tensor | None = None) -> Tensor:
    """Return True for the scores that keep their weights.

    Args:
        scores: Of one matrix, ``[out / rows, in / columns]``; so is the result.
        method: See ``ScoredLinear``.
        value: Share that is kept, or threshold.
        alive: False where there is nothing left to keep, which ranks last, of the shape of the scores; by default
            nowhere.
    """
    if alive is not None:
        scores = scores.detach().masked_fill(~alive, -torch.inf)
    if method == "hard":
        return keep_largest(scores, round(value * scores.numel()))
    kept = scores.detach().sigmoid() > value
    least = math.ceil(LEAST_KEPT * scores.numel())
    return kept if int(kept.sum()) >= least else keep_largest(scores, least)


def spread(values: Tensor, block: tuple[int, int]) -> Tensor:
    """Return a matrix in which every value fills its block.

    Args:
        values: ``[rows, columns]``.
        block: (a, b), for a result of ``[rows · a, columns · b]``.
    """
    if block == (1, 1):
        return values
    return values.repeat_interleave(block[0], dim=0).repeat_interleave(block[1], dim=1)


def scheduled_value(start: float, end: float, step: int, total: int, warm: int, waits: float, cools: float) -> float:
    """Return the value of the schedule before update ``step``.

    ``start`` for the first ``waits · warm`` steps, ``end`` for the last ``cools · warm``, and between them
    ``end + (start - end) · (1 - progress)³``.

    Args:
        start: First value.
        end: Last value.
        step: Counted from 0; ``total`` after the last optimizer step.
        total: All optimizer steps.
        warm: Updates of the warm-up of the learning rate.
        waits: How often as long nothing is pruned.
        cools: How often as long the last value is held.
    """
    if step >= total or step > total - cools * warm:
        return end
    if step <= waits * warm:
        return start
    return cubic(start, end, (step - waits * warm) / (total - (waits + cools) * warm))
