"""Which weights a pruning keeps: exact counts by rank, and the schedule of the sparsity."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def keep_largest(values: Tensor, count: int) -> Tensor:
    """Return True for exactly ``count`` of the values, the largest; of equal ones those that come first.

    The order is total, so of unchanged values a smaller count keeps a part of what a larger one keeps.

    Args:
        values: Any shape, at least one value; the mask has the same.
        count: 0 to all.

    Examples:
        >>> import torch
        >>> keep_largest(torch.tensor([[3.0, 1.0], [2.0, 3.0]]), 2)
        tensor([[ True, False],
                [False,  True]])
    """
    flat = values.detach().flatten()
    if count <= 0:
        return torch.zeros_like(values, dtype=torch.bool)
    least = flat.kthvalue(flat.numel() - count + 1).values
    kept = flat >= least
    if int(kept.sum()) > count:  # several have the least value
        above, equal = flat > least, flat == least
        kept = above | (equal & (equal.cumsum(0) <= count - above.sum()))
    return kept.reshape(values.shape)


def keep_largest_together(values: Sequence[Tensor], count: int) -> list[Tensor]:
    """Return True for exactly ``count`` of the values of all tensors together; see ``keep_largest``.

    Args:
        values: Tensors of any shapes; the masks have the same.
        count: 0 to all.
    """
    kept = keep_largest(torch.cat([tensor.detach().flatten() for tensor in values]), count)
    parts = torch.split(kept, [tensor.numel() for tensor in values])
    return [part.reshape(tensor.shape) for part, tensor in zip(parts, values, strict=True)]


def keep_in_groups(values: Tensor, count: int, group: int) -> Tensor:
    """Return True for the ``count`` largest of every ``group`` neighbours along the last axis, whose length it divides.

    Of equal ones those that come first are kept.

    Args:
        values: ``[…, n]``; so is the mask.
        count: 0 to ``group``.
        group: A divisor of n.

    Examples:
        >>> import torch
        >>> keep_in_groups(torch.tensor([[4.0, 1.0, 3.0, 2.0]]), count=2, group=4)  # 2:4 sparsity
        tensor([[ True, False,  True, False]])
    """
    rows = values.detach().reshape(-1, group)
    order = rows.argsort(dim=-1, descending=True, stable=True)[:, :count]
    return torch.zeros_like(rows, dtype=torch.bool).scatter_(1, order, True).reshape(values.shape)


def cubic(start: float, end: float, progress: float) -> float:
    """Return ``end + (start - end) · (1 - progress)³`` (Zhu, Gupta 2017, arXiv 1710.01878).

    Args:
        start: Value up to progress 0.
        end: Value from progress 1 on.
        progress: Where the schedule stands.

    Examples:
        >>> [round(cubic(0.0, 0.8, progress), 3) for progress in (0.0, 0.5, 1.0)]
        [0.0, 0.7, 0.8]
    """
    left = 1 - min(max(progress, 0.0), 1.0)
    return end + (start - end) * left**3
