"""Layers of several networks over one base as one layer: each row of a batch takes the small matrices of its own task.

``y = W x + B_t (A_t x)`` with ``A_t`` and ``B_t`` of the row's task: the base's product runs once for a batch, whatever
tasks its rows ask, as in servers of decoders (Chen et al. 2023, arXiv 2310.18547: Punica; Sheng et al. 2023, arXiv
2311.03285: S-LoRA). They are made to be exported, and are neither trained nor saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (the field's own abbreviation)

from eval.errors import UserError

OWN = "*of_task*"
"""Pattern of the modules that hold what each task has of its own."""


class Asked:
    """Which task each row of the batch under way asks, int64 ``[B]``."""

    rows: Tensor


class PerTask(nn.Module):
    """A tensor of each task; what runs takes that of each row. Tasks that have none share one of zeros.

    Args:
        values: One a task, of one shape, or None.
        asked: Whose tasks the rows ask.
    """

    places: Tensor

    def __init__(self, values: Sequence[Tensor | None], asked: Asked) -> None:
        super().__init__()
        self.asked = asked
        kept = [value.detach() for value in values if value is not None]
        numbers = iter(range(len(kept)))
        places = torch.tensor([len(kept) if value is None else next(numbers) for value in values])
        self.all = len(kept) == len(values)
        self.values = nn.Parameter(torch.stack(kept if self.all else [*kept, torch.zeros_like(kept[0])]))
        self.register_buffer("places", places)

    def forward(self, axes: int) -> Tensor:
        """Return the values of the rows, with axes of 1 after the first until there are so many, ``[B, …]``."""
        rows = self.asked.rows
        found: Tensor = self.values[rows if self.all else self.places[rows]]
        for _ in range(axes - found.ndim):
            found = found.unsqueeze(1)
        return found


class StackedBottleneck(nn.Module):
    """``U_t f(D_t h + d_t) + u_t``; tasks that have no bottleneck, or fewer channels, are filled with zeros.

    Args:
        parts: A ``teachers.adapters.bottleneck.Bottleneck`` a task, or None.
        asked: Whose tasks the rows ask.
    """

    def __init__(self, parts: Sequence[Any], asked: Asked) -> None:
        super().__init__()
        known = [part for part in parts if part is not None]
        size, width = max(part.down.out_features for part in known), known[0].down.in_features
        self.activation = known[0].activation
        down = [_padded(None if part is None else part.down.weight.T, width, size) for part in parts]
        up = [_padded(None if part is None else part.up.weight.T, size, width) for part in parts]
        down_bias = [_padded(None if part is None else part.down.bias[None], 1, size) for part in parts]
        up_bias = [_padded(None if part is None else part.up.bias[None], 1, width) for part in parts]
        self.down_of_task, self.up_of_task = PerTask(down, asked), PerTask(up, asked)
        self.down_bias_of_task, self.up_bias_of_task = PerTask(down_bias, asked), PerTask(up_bias, asked)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return ``[B, …, width]`` for ``[B, …, width]``."""
        axes = inputs.ndim
        states: Tensor = self.activation(inputs @ self.down_of_task(axes) + self.down_bias_of_task(axes))
        outputs: Tensor = states @ self.up_of_task(axes) + self.up_bias_of_task(axes)
        return outputs


class StackedLinear(nn.Module):
    """``h + U_t gelu(D_t h)`` with ``h = W x + bias + B_t A_t x``, as far as the tasks have it.

    Args:
        parts: The layer of each task: plain, PEFT's with LoRA, or with a bottleneck.
        asked: Whose tasks the rows ask.
    """

    def __init__(self, parts: Sequence[Any], asked: Asked) -> None:
        super().__init__()
        self.asked = asked
        base = getattr(parts[0], "base_layer", parts[0])
        self.weight, self.bias = base.weight, base.bias
        ranks = [part.r["default"] if hasattr(part, "lora_A") else 0 for part in parts]
        self.first_of_task = self.second_of_task = None
        if rank := max(ranks):
            pairs = [_pair(part) if own else (None, None) for part, own in zip(parts, ranks, strict=True)]
            self.first_of_task = PerTask([_padded(first, base.in_features, rank) for first, _ in pairs], asked)
            self.second_of_task = PerTask([_padded(second, rank, base.out_features) for _, second in pairs], asked)
        self.adapter = _bottlenecks(parts, asked)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return ``[B, …, out]`` for ``[B, …, in]``.

        Raises:
            UserError: If it is called for something else than the rows of the batch.
        """
        if not torch.onnx.is_in_onnx_export() and len(inputs) != len(self.asked.rows):
            raise UserError(
                "a matrix with an adapter reads something that is not of one text, such as relative positions, so it "
                "has no task; train the adapter on other parts, or export each task by itself"
            )
        states = F.linear(inputs, self.weight, self.bias)
        if self.first_of_task is not None and self.second_of_task is not None:
            states = states + (inputs @ self.first_of_task(inputs.ndim)) @ self.second_of_task(inputs.ndim)
        return states if self.adapter is None else states + self.adapter(states)


class StackedNorm(nn.Module):
    """``norm(s + U_t relu(D_t norm(s)))``, with the gain and the offset of the row's task where they differ.

    Args:
        parts: The norm of each task, with a bottleneck or without.
        asked: Whose tasks the rows ask.
    """

    def __init__(self, parts: Sequence[Any], asked: Asked) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(parts[0].normalized_shape, parts[0].eps, bias=parts[0].bias is not None)
        self.weight_of_task = self.bias_of_task = None
        if all(_same(part, parts[0]) for part in parts):
            self.norm.weight, self.norm.bias = parts[0].weight, parts[0].bias
        else:
            self.weight_of_task = PerTask([part.weight for part in parts], asked)
            self.bias_of_task = None if parts[0].bias is None else PerTask([part.bias for part in parts], asked)
        self.adapter = _bottlenecks(parts, asked)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return ``[B, …, width]`` for ``[B, …, width]``."""
        if self.adapter is None:
            return self._norm(inputs)
        return self._norm(inputs + self.adapter(self._norm(inputs)))

    def _norm(self, inputs: Tensor) -> Tensor:
        states: Tensor = self.norm(inputs)
        if self.weight_of_task is not None:
            states = states * self.weight_of_task(inputs.ndim)
        return states if self.bias_of_task is None else states + self.bias_of_task(inputs.ndim)


def stacked(parts: Sequence[nn.Module], asked: Asked) -> nn.Module | None:
    """Return one layer for those at the same place of several networks; None if all of them are the same.

    Args:
        parts: The layer of each task.
        asked: Whose tasks the rows ask.
    """
    if any(hasattr(part, "lora_A") or (isinstance(part, nn.Linear) and hasattr(part, "adapter")) for part in parts):
        return StackedLinear(parts, asked)
    is_norm = isinstance(parts[0], nn.LayerNorm)
    if is_norm and (any(hasattr(part, "adapter") for part in parts) or not all(_same(p, parts[0]) for p in parts)):
        return StackedNorm(parts, asked)
    return None


def _bottlenecks(parts: Sequence[Any], asked: Asked) -> StackedBottleneck | None:
    own = [getattr(part, "adapter", None) for part in parts]
    return StackedBottleneck(own, asked) if any(one is not None for one in own) else None


def _pair(part: Any) -> tuple[Tensor, Tensor]:
    """Return A ``[in, rank]`` and B ``[rank, out]`` of a layer with LoRA, which B scales."""
    first, second = part.lora_A["default"].weight, part.lora_B["default"].weight
    return first.T, part.scaling["default"] * second.T


def _padded(values: Tensor | None, rows: int, columns: int) -> Tensor | None:
    """Return a matrix with further rows and columns of zeros; None for None."""
    if values is None:
        return None
    found = torch.zeros(rows, columns)
    found[: values.shape[0], : values.shape[1]] = values.detach()
    return found


def _same(one: Any, other: Any) -> bool:
    pairs = [(one.weight, other.weight)] + [(one.bias, other.bias)] * (one.bias is not None)
    return all(torch.equal(first, second) for first, second in pairs)
