"""Rounding to low-bit grids while a network is trained: weights by groups of outputs, activations by moving ranges."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from compress.modules.low_bit import fake_quantized
from compress.modules.masked import is_masked


class Rounding:
    """Rounds chosen layers of a network until ``undo``; their modules stay where they are.

    Args:
        momentum: Of the moving ranges of activations.
    """

    def __init__(self, momentum: float = 0.99) -> None:
        self.momentum = momentum
        self.modules: list[nn.Module] = []
        self.hooks: list[Any] = []

    def weights(self, module: nn.Module, bits: int, height: int, clip: float) -> None:
        """Round the weight of a linear layer or table, with one range for ``height`` rows; of a shared one, once.

        Where weights are pruned the grid has an exact 0.
        """
        if any(module is known for known in self.modules):
            return
        parametrize.register_parametrization(module, "weight", _Grid(bits, height, clip, is_masked(module)))
        self.modules.append(module)

    def inputs(self, module: nn.Module, bits: int) -> None:
        """Round what a layer is given; what a shared one is given has one range."""
        if hasattr(module, "input_range"):
            return
        module.add_module("input_range", MovingGrid(bits, self.momentum))
        self.hooks.append((module, module.register_forward_pre_hook(_rounded_input)))

    def undo(self) -> None:
        """Leave the weights as they were trained, and nothing else."""
        for module in self.modules:
            parametrize.remove_parametrizations(module, "weight", leave_parametrized=False)
        for module, handle in self.hooks:
            handle.remove()
            del module.input_range


class MovingGrid(nn.Module):
    """Rounds what passes to a uniform grid between moving averages of minimum and maximum, which only training moves.

    ``x̂ = round((x - min) / D) · D + min``, ``D = (max - min) / (2^bits - 1)``; what lies outside is clipped. The first
    batch gives the first range; before it, nothing is rounded.

    Args:
        bits: Bits of an activation.
        momentum: What a range keeps of itself at each batch.
    """

    low: Tensor
    high: Tensor

    def __init__(self, bits: int, momentum: float) -> None:
        super().__init__()
        self.bits, self.momentum = bits, momentum
        self.register_buffer("low", torch.zeros(()))
        self.register_buffer("high", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x``, of any shape, rounded; the gradient passes as if nothing had happened."""
        with torch.no_grad():
            if self.training:
                self._observe(x)
            step = (self.high - self.low) / (2**self.bits - 1)
            steps = ((x.float() - self.low) / step).round().clamp(0, 2**self.bits - 1)
            # No value is asked for: a GPU would stop for each answer, in every layer of every step.
            rounded: Tensor = torch.where(self.high > self.low, (steps * step + self.low).to(x.dtype), x)
        return x + (rounded - x).detach()

    def _observe(self, x: Tensor) -> None:
        known = self.high > self.low
        for average, now in zip((self.low, self.high), x.aminmax(), strict=True):
            moved = self.momentum * average + (1 - self.momentum) * now.float()
            average.copy_(torch.where(known, moved, now.float()))


class _Grid(nn.Module):
    def __init__(self, bits: int, height: int, clip: float, zero: bool) -> None:
        super().__init__()
        self.bits, self.height, self.clip, self.zero = bits, height, clip, zero

    def forward(self, weight: Tensor) -> Tensor:
        return fake_quantized(weight, self.bits, self.height, self.clip, self.zero)


def _rounded_input(module: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    rounded: Tensor = module.input_range(given[0])  # type: ignore[operator]
    return (rounded, *given[1:])
