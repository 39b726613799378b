"""Linear layers and embedding tables whose weights are kept as packed codes of 2, 3, 4 or 8 bits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (the field's own abbreviation)

from compress.modules.low_bit import asymmetric, pack, row_bytes, symmetric, unpack

NBITS = (2, 4)
"""Bits of a weight for which a product becomes ONNX Runtime's MatMulNBits. It takes 8 too, but is then far slower than
the same codes unpacked: 0.26 (16 tokens) to 0.63 (128) of float32's speed on one thread of an x86 with AVX-512."""


class Packed(nn.Module):
    """A matrix ``[rows, columns]`` as codes with a range for every group of rows, or for every block of a row.

    ``w = code · scale + offset``; symmetric: ``w = (code - 2^(bits - 1)) · scale``, without an offset.

    Args:
        rows: Outputs of a linear layer, or words of a table.
        columns: Inputs of a linear layer, or channels of a table.
        bits: Bits of a code: 2, 3, 4 or 8.
        height: Rows that share a range.
        width: Columns that share a range; None for all of a row. Rows are filled up to a multiple of it.
        symmetric: Whether there is no offset.
        ranges: Type in which scales and offsets are kept: ``float32`` or ``float16``.
    """

    codes: Tensor
    scale: Tensor
    offset: Tensor | None

    def __init__(
        self,
        rows: int,
        columns: int,
        bits: int,
        height: int = 1,
        width: int | None = None,
        symmetric: bool = False,
        ranges: str = "float32",
    ) -> None:
        super().__init__()
        self.rows, self.columns, self.bits, self.height, self.width = rows, columns, bits, height, width
        self.symmetric, self.ranges = symmetric, ranges
        self.blocks = 1 if width is None else -(-columns // width)
        self.stored = columns if width is None else self.blocks * width
        shape, dtype = (-(-rows // height), self.blocks), getattr(torch, ranges)
        self.register_buffer("codes", torch.zeros(rows, row_bytes(self.stored, bits), dtype=torch.uint8))
        self.register_buffer("scale", torch.ones(shape, dtype=dtype))
        self.register_buffer("offset", None if symmetric else torch.zeros(shape, dtype=dtype))

    def describe(self) -> dict[str, Any]:
        """Return the arguments that all packed modules have."""
        names = ("bits", "height", "width", "symmetric", "ranges")
        return {name: getattr(self, name) for name in names}

    def weight_count(self) -> tuple[int, int]:
        """Return how many weights the codes stand for, and how many of them are not 0."""
        every = self.rows * self.columns
        return every, every if self.codes.is_meta else int(torch.count_nonzero(self.matrix()))

    @torch.no_grad()
    def fill(self, matrix: Tensor, clip: float = 0.0) -> None:
        """Take the codes and ranges of a matrix ``[rows, columns]``; codes are those nearest to the ranges as kept.

        Args:
            matrix: The weights.
            clip: Part of a group's weights outside of its range at either end; only without ``symmetric``.
        """
        matrix = matrix.detach().float()
        if self.symmetric:
            self.scale.copy_(symmetric(matrix, self.bits, self.width or self.columns))
            scale = self._by_row(self.scale)
            offset = -(2 ** (self.bits - 1)) * scale
        else:
            step, low = asymmetric(matrix, self.bits, self.height, clip)
            self.scale.copy_(step)
            self.offset.copy_(low)  # type: ignore[union-attr]
            scale, offset = self._by_row(self.scale), self._by_row(self.offset)  # type: ignore[arg-type]
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))  # half precision has no smaller step
        blocks = F.pad(matrix, (0, self.stored - self.columns)).reshape(self.rows, self.blocks, -1)
        codes = ((blocks - offset[..., None]) / scale[..., None]).round().clamp(0, 2**self.bits - 1)
        self.codes.copy_(pack(codes.flatten(1).to(torch.uint8), self.bits))

    def matrix(self) -> Tensor:
        """Return the weights ``[rows, columns]`` as float32."""
        if self.blocks == 1 and self.rows % self.height == 0:
            shape = (self.rows // self.height, self.height * self.stored)
            return self._values(self.codes, self.scale, self.offset, shape)
        scale = self._by_row(self.scale)[..., None]
        offset = None if self.offset is None else self._by_row(self.offset)[..., None]
        return self._values(self.codes, scale, offset, (self.rows, self.blocks, self.stored // self.blocks))

    def _by_row(self, ranges: Tensor) -> Tensor:
        """Return ranges of groups ``[groups, blocks]`` as float32 ranges of rows ``[rows, blocks]``."""
        if self.height > 1:
            ranges = ranges[:, None].expand(-1, self.height, -1).reshape(-1, self.blocks)[: self.rows]
        return ranges.float()

    def _values(self, codes: Tensor, scale: Tensor, offset: Tensor | None, shape: tuple[int, ...]) -> Tensor:
        """Return the weights ``[rows, columns]`` of codes ``[rows, bytes]``, as ``shape`` where ranges meet them."""
        values = unpack(codes, self.bits, self.stored).float()
        plain = shape[1:] == (self.stored,)
        values = values if plain else values.reshape(shape)
        if offset is None:
            values = (values - 2 ** (self.bits - 1)) * scale.float()
        else:
            values = values * scale.float() + offset.float()
        values = values if plain else values.reshape(-1, self.stored)
        return values if self.stored == self.columns else values[:, : self.columns]


class PackedLinear(Packed):
    """``y = x Wᵀ + b`` with packed W; it is unpacked at every use.

    In an ONNX graph 4-bit codes in blocks of a power of two from 16 on, symmetric and with a range for each row, become
    ONNX Runtime's MatMulNBits; other codes are unpacked by standard operators, which a runtime does once when it loads.

    Args:
        in_features: Inputs.
        out_features: Outputs.
        bias: Whether there is b, in float32.
        packing: Further arguments of ``Packed``.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, **packing: Any) -> None:
        super().__init__(out_features, in_features, **packing)
        self.in_features, self.out_features = in_features, out_features
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None

    @classmethod
    def of(cls, linear: nn.Linear, clip: float = 0.0, **packing: Any) -> PackedLinear:
        """Return a linear layer with its weight packed; the bias is the same parameter."""
        made = cls(linear.in_features, linear.out_features, linear.bias is not None, **packing)
        made.fill(linear.weight, clip)
        made.bias = linear.bias
        return made.train(linear.training)

    def describe(self) -> dict[str, Any]:
        """Return how it is built again, as plain JSON."""
        sizes = {"in_features": self.in_features, "out_features": self.out_features, "bias": self.bias is not None}
        return sizes | super().describe()

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[…, out_features]`` for x ``[…, in_features]``."""
        y = F.linear(x, self.matrix().to(x.dtype))
        if self._has_operator() and torch.onnx.is_in_onnx_export():
            codes = self.codes.reshape(self.rows, self.blocks, -1)
            sizes = (self.columns, self.rows, self.bits, self.width)
            y = _MatMulNBits.apply(x, codes, self.scale.float(), y, *sizes)  # type: ignore[no-untyped-call]
        return y if self.bias is None else y + self.bias

    def _has_operator(self) -> bool:
        width = self.width or 0
        return self.symmetric and self.height == 1 and self.bits in NBITS and width >= 16 and not width & (width - 1)


class PackedEmbedding(Packed):
    """A table of vectors with packed rows; only the rows that are looked up are unpacked.

    Args:
        num_embeddings: Rows.
        embedding_dim: Channels of a row.
        padding_idx: The row of padding, as in the layer that it was made from; nothing is done with it.
        packing: Further arguments of ``Packed``.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, **packing: Any) -> None:
        super().__init__(num_embeddings, embedding_dim, **packing)
        self.num_embeddings, self.embedding_dim, self.padding_idx = num_embeddings, embedding_dim, padding_idx

    @classmethod
    def of(cls, table: nn.Embedding, clip: float = 0.0, **packing: Any) -> PackedEmbedding:
        """Return a table with its rows packed."""
        made = cls(table.num_embeddings, table.embedding_dim, table.padding_idx, **packing)
        made.fill(table.weight, clip)
        return made.train(table.training)

    def describe(self) -> dict[str, Any]:
        """Return how it is built again, as plain JSON."""
        names = ("num_embeddings", "embedding_dim", "padding_idx")
        return {name: getattr(self, name) for name in names} | super().describe()

    @property
    def weight(self) -> Tensor:
        """The whole table, unpacked; a change of it is lost."""
        return self.matrix()

    def forward(self, ids: Tensor) -> Tensor:
        """Return the vectors ``[…, embedding_dim]`` of ids ``[…]``."""
        flat = ids.reshape(-1)
        group = flat if self.height == 1 else torch.div(flat, self.height, rounding_mode="trunc")
        scale, offset = self.scale[group], None if self.offset is None else self.offset[group]
        shape: tuple[int, ...] = (-1, self.stored)
        if self.blocks > 1:
            scale, offset = scale[..., None], None if offset is None else offset[..., None]
            shape = (-1, self.blocks, self.stored // self.blocks)
        return self._values(self.codes[flat], scale, offset, shape).reshape(*ids.shape, self.columns)


class _MatMulNBits(torch.autograd.Function):
    """The operator that a packed linear layer is in an ONNX graph: codes ``[rows, blocks, bytes]``, scales a block."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, codes: Tensor, scale: Tensor, y: Tensor, *sizes: int | None) -> Tensor:
        del ctx, x, codes, scale, sizes
        return y.view_as(y)

    @staticmethod
    def symbolic(g: Any, x: Any, codes: Any, scale: Any, y: Any, *sizes: int | None) -> Any:
        named = dict(zip(("K_i", "N_i", "bits_i", "block_size_i"), sizes, strict=True))
        return g.op("com.microsoft::MatMulNBits", x, codes, scale, **named).setType(y.type())
