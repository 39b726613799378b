"""Weights of 2, 3, 4 or 8 bits: how codes lie in bytes, and the grids of values that they stand for."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (the field's own abbreviation)

BITS = (2, 3, 4, 8)
PARTS = {2: (2,), 3: (2, 1), 4: (4,), 8: (8,)}
"""Bits of a code -> the parts that it is kept in, low bits first; each fills bytes evenly."""


def pack(codes: Tensor, bits: int) -> Tensor:
    """Return codes ``[rows, columns]`` below 2^bits as bytes ``[rows, row_bytes(columns, bits)]``.

    The first code lies in the lowest bits of the first byte. Of 3 bits, the low two of all codes of a row come first
    and the high ones after them.

    Examples:
        >>> import torch
        >>> codes = torch.tensor([[1, 2, 3, 0]], dtype=torch.uint8)
        >>> pack(codes, bits=2)
        tensor([[57]], dtype=torch.uint8)
        >>> unpack(pack(codes, bits=2), bits=2, columns=4)
        tensor([[1, 2, 3, 0]], dtype=torch.uint8)
    """
    sections, shift = [], 0
    for part in PARTS[bits]:
        each = 8 // part
        values = F.pad((codes.to(torch.uint8) >> shift) % 2**part if part < 8 else codes, (0, -codes.shape[1] % each))
        places = torch.arange(0, 8, part, dtype=torch.uint8, device=codes.device)
        sections.append((values.reshape(len(values), -1, each).to(torch.uint8) << places).sum(dim=2, dtype=torch.uint8))
        shift += part
    return torch.cat(sections, dim=1)


def unpack(packed: Tensor, bits: int, columns: int) -> Tensor:
    """Return the codes ``[rows, columns]`` of bytes ``[rows, row_bytes]``, as uint8.

    It is written in few operators that ONNX has, none of which an exporter carries out: a file keeps the bytes.
    """
    found, start, shift = None, 0, 0
    for part in PARTS[bits]:
        each = 8 // part
        size = -(-columns // each)
        section = packed if len(PARTS[bits]) == 1 else packed[:, start : start + size]
        values = section[:, :, None] >> torch.arange(0, 8, part, dtype=torch.uint8, device=packed.device)
        values = (values % 2**part if part < 8 else values).reshape(-1, size * each)
        values = values if size * each == columns else values[:, :columns]
        found = values if found is None else found + values * 2**shift
        start, shift = start + size, shift + part
    assert found is not None
    return found


def row_bytes(columns: int, bits: int) -> int:
    """Return how many bytes a row of codes takes."""
    return sum(-(-columns * part // 8) for part in PARTS[bits])


def group_height(rows: int, groups: int | None) -> int:
    """Return the rows of a group when ``rows`` are cut into ``groups``; a remainder is one more group. None: 1 row."""
    return 1 if groups is None else max(1, rows // groups)


def row_groups(matrix: Tensor, height: int) -> Tensor:
    """Return a matrix ``[rows, columns]`` as ``[groups, height · columns]``; a short last group repeats a row of it."""
    groups = -(-len(matrix) // height)
    places = torch.arange(groups * height, device=matrix.device).clamp(max=len(matrix) - 1)
    return matrix[places].reshape(groups, -1)


def asymmetric(matrix: Tensor, bits: int, height: int, clip: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return step and lowest value of the uniform grid of every group of rows: ``D = (max - min) / (2^bits - 1)``.

    Args:
        matrix: ``[rows, columns]``.
        bits: Bits of a code.
        height: Rows of a group.
        clip: Part of a group's weights that lies outside of its range at either end.

    Returns:
        Both ``[groups, 1]``. The step of a group whose weights are all equal is 1.
    """
    low, high = _range(row_groups(matrix, height), clip)
    step = (high - low) / (2**bits - 1)
    return torch.where(step > 0, step, torch.ones_like(step)), low


def with_zero(matrix: Tensor, bits: int, height: int, clip: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return step and zero point of the grid of every group of rows that has an exact 0.

    ``x̂ = (q - z) · D`` with ``D = (max - min) / (2^bits - 1)`` and ``z = round(-min / D)``, a range without 0 being
    widened to it: the grid of ``asymmetric``, moved by at most half a step. Its arguments are the same.

    Returns:
        Both ``[groups, 1]``. The step of a group of zeros is 1.
    """
    groups = row_groups(matrix, height)
    low, high = _range(groups, clip)
    low, high = low.clamp_max(0), high.clamp_min(0)
    step = (high - low) / (2**bits - 1)
    step = torch.where(step > 0, step, torch.ones_like(step))
    return step, (-low / step).round().clamp(0, 2**bits - 1)


def _range(groups: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """Return the quantiles ``clip`` and ``1 - clip`` of every row, without sorting all of it."""
    if not clip:
        return groups.amin(dim=1, keepdim=True), groups.amax(dim=1, keepdim=True)
    place = clip * (groups.shape[1] - 1)
    below, count = int(place), min(int(place) + 2, groups.shape[1])
    ends = (groups.topk(count, dim=1, largest=largest).values for largest in (False, True))
    low, high = (torch.lerp(end[:, [below]], end[:, [count - 1]], place - below) for end in ends)
    return low, high


def symmetric(matrix: Tensor, bits: int, width: int) -> Tensor:
    """Return the step of every block of ``width`` weights of a row: ``max|w| / (2^(bits - 1) - 1)``.

    Args:
        matrix: ``[rows, columns]``.
        bits: Bits of a code.
        width: Weights of a block.

    Returns:
        ``[rows, blocks]``; 1 for a block of zeros.

    Examples:
        >>> import torch
        >>> symmetric(torch.tensor([[7.0, -3.5, 1.4, 0.7]]), bits=4, width=2)
        tensor([[1.0000, 0.2000]])
    """
    padded = F.pad(matrix, (0, -matrix.shape[1] % width))
    largest = padded.reshape(len(padded), -1, width).abs().amax(dim=2)
    return torch.where(largest > 0, largest / (2 ** (bits - 1) - 1), torch.ones_like(largest))


def fake_quantized(matrix: Tensor, bits: int, height: int, clip: float = 0.0, zero: bool = False) -> Tensor:
    """Return every weight at the nearest value of its group's grid; the gradient passes as if nothing had happened.

    ``x̂ = round((x - min) / D) · D + min``; with ``zero`` the grid has an exact 0, see ``with_zero``.

    Args:
        matrix: ``[rows, columns]``; so is the result.
        bits: Bits of a code.
        height: Rows of a group.
        clip: Part of a group's weights that lies outside of its range at either end.
        zero: Whether the grid has an exact 0.
    """
    with torch.no_grad():
        step, start = (
            ranges.repeat_interleave(height, 0)[: len(matrix)]
            for ranges in (with_zero if zero else asymmetric)(matrix, bits, height, clip)
        )
        if zero:
            rounded = ((matrix / step + start).round().clamp(0, 2**bits - 1) - start) * step
        else:
            rounded = ((matrix - start) / step).round().clamp(0, 2**bits - 1) * step + start
    return matrix + (rounded - matrix).detach()
