"""Linear layers and embedding tables whose weights are kept as packed codes of 2, 3, 4 or 8 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (the field's own abbreviation)

from compress.modules.low_bit import asymmetric, pack, row_bytes, symmetric, unpack, with_zero
from compress.modules.masked import is_masked

NBITS = (2, 4)
"""Bits of a weight for which a product becomes ONNX Runtime's MatMulNBits. It takes 8 too, but is then far slower than
the same codes unpacked: 0.26 (16 tokens) to 0.63 (128) of float32's speed on one thread of an x86 with AVX-512."""


Ranges = tuple[Tensor, Tensor | None, Tensor | None]
"""Scale, offset and zero point of some groups; those that a form does not have are None."""


class Packed(nn.Module):
    """A matrix ``[rows, columns]`` as codes with a range for every group of rows, or for every block of a row.

    ``w = code · scale + offset``; symmetric: ``w = (code - 2^(bits - 1)) · scale``; with zero points:
    ``w = (code - zero) · scale``. The last two have an exact 0, and are saved without the codes that stand for it where
    that takes fewer bytes.

    Args:
        rows: Outputs of a linear layer, or words of a table.
        columns: Inputs of a linear layer, or channels of a table.
        bits: Bits of a code: 2, 3, 4 or 8.
        height: Rows that share a range.
        width: Columns that share a range; None for all of a row. Rows are filled up to a multiple of it.
        symmetric: Whether there is no offset.
        ranges: Type in which scales and offsets are kept: ``float32`` or ``float16``.
        zero_points: Whether every group has the code that stands for 0, in the place of an offset.
    """

    codes: Tensor
    scale: Tensor
    offset: Tensor | None
    zero: Tensor | None

    def __init__(
        self,
        rows: int,
        columns: int,
        bits: int,
        height: int = 1,
        width: int | None = None,
        symmetric: bool = False,
        ranges: str = "float32",
        zero_points: bool = False,
    ) -> None:
        super().__init__()
        self.rows, self.columns, self.bits, self.height, self.width = rows, columns, bits, height, width
        self.symmetric, self.ranges, self.zero_points = symmetric, ranges, zero_points
        self.sparse_tensors = ("codes",) if symmetric or zero_points else ()
        self.blocks = 1 if width is None else -(-columns // width)
        self.stored = columns if width is None else self.blocks * width
        shape, dtype = (-(-rows // height), self.blocks), getattr(torch, ranges)
        self.register_buffer("codes", torch.zeros(rows, row_bytes(self.stored, bits), dtype=torch.uint8))
        self.register_buffer("scale", torch.ones(shape, dtype=dtype))
        self.register_buffer("offset", None if symmetric or zero_points else torch.zeros(shape, dtype=dtype))
        self.register_buffer("zero", torch.zeros(shape, dtype=torch.uint8) if zero_points else None)

    def describe(self) -> dict[str, Any]:
        """Return the arguments that all packed modules have."""
        names = ("bits", "height", "width", "symmetric", "ranges", "zero_points")
        return {name: getattr(self, name) for name in names}

    def weight_count(self) -> tuple[int, int]:
        """Return how many weights the codes stand for, and how many of them are not 0."""
        every = self.rows * self.columns
        if self.codes.is_meta:
            return every, every
        return every, int((self.kept() if self.sparse_tensors else self.matrix()).count_nonzero())

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Packed:
        """Move in place what is moved, as torch does with parameters: tied modules stay tied on another device."""
        own = {name: buffer for name, buffer in self._buffers.items() if buffer is not None}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in own.items():
            moved: Any = self._buffers[name]
            if torch._has_compatible_shallow_copy_type(buffer, moved):
                buffer.data = moved
                self._buffers[name] = buffer
        return self

    def saved_bytes(self, name: str) -> int:
        """Return the bytes of the codes in a file: of all, or a bit for each and those of weights that are not 0."""
        del name
        count, left = self.weight_count()
        return min(self.codes.numel(), -(-count // 8) + row_bytes(left, self.bits))

    def kept(self) -> Tensor:
        """Return which codes do not stand for 0, ``[rows · columns]``; only where there is an exact 0."""
        return (unpack(self.codes, self.bits, self.stored) != self._zeros())[:, : self.columns].reshape(-1)

    def without_zeros(self) -> tuple[Tensor, Tensor]:
        """Return ``kept`` and the codes for which it is true, packed as one row ``[bytes]``."""
        kept, codes = self.kept(), unpack(self.codes, self.bits, self.stored)[:, : self.columns]
        return kept, pack(codes.reshape(1, -1)[:, kept], self.bits)[0]

    @torch.no_grad()
    def with_zeros(self, kept: Tensor, values: Tensor) -> None:
        """Take the codes from what ``without_zeros`` returned; the zero points are there already.

        Raises:
            ValueError: If there are not as many codes as places for them.
        """
        count = int(kept.sum())
        if values.shape != (row_bytes(count, self.bits),) or values.dtype != torch.uint8:
            raise ValueError(f"it has codes of {tuple(values.shape)} bytes for {count} places")
        codes = self._zeros()
        inner = codes[:, : self.columns].reshape(-1)
        inner[kept] = unpack(values[None], self.bits, count)[0]
        codes[:, : self.columns] = inner.reshape(self.rows, self.columns)
        self.codes.copy_(pack(codes, self.bits))

    def _take(self, module: nn.Linear | nn.Embedding, clip: float, tied: Packed | None) -> None:
        """Pack the weight of a module, or have the codes and ranges of another of the same weight and form."""
        if tied is None:
            self.fill(module.weight, clip)
        else:
            self._buffers.update(tied._buffers)

    def _has_operator(self) -> bool:
        """Whether a product with these codes is an operator of ONNX Runtime."""
        width = self.width or 0
        return self.symmetric and self.height == 1 and self.bits in NBITS and width >= 16 and not width & (width - 1)

    def _zeros(self) -> Tensor:
        """Return the code that stands for 0 in every place, ``[rows, stored]``."""
        if self.zero is None:
            return torch.full(
                (self.rows, self.stored), 2 ** (self.bits - 1), dtype=torch.uint8, device=self.codes.device
            )
        return self._by_row(self.zero).to(torch.uint8).repeat_interleave(self.stored // self.blocks, dim=1)

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
        elif self.zero is not None:
            step, zero = with_zero(matrix, self.bits, self.height, clip)
            self.scale.copy_(step)
            self.zero.copy_(zero)
        elif self.offset is not None:
            step, low = asymmetric(matrix, self.bits, self.height, clip)
            self.scale.copy_(step)
            self.offset.copy_(low)
        scale = self._by_row(self.scale)[..., None]
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))  # half precision has no smaller step
        blocks = F.pad(matrix, (0, self.stored - self.columns)).reshape(self.rows, self.blocks, -1)
        if self.offset is not None:
            steps = (blocks - self._by_row(self.offset)[..., None]) / scale
        else:
            steps = blocks / scale + self._zeros().reshape(blocks.shape)
        codes = steps.round().clamp(0, 2**self.bits - 1)
        self.codes.copy_(pack(codes.flatten(1).to(torch.uint8), self.bits))

    def matrix(self) -> Tensor:
        """Return the weights ``[rows, columns]`` as float32."""
        if self.blocks == 1 and self.rows % self.height == 0:
            shape = (self.rows // self.height, self.height * self.stored)
            return self._values(self.codes, self._ranges(lambda each: each), shape)
        ranges = self._ranges(lambda each: self._by_row(each)[..., None])
        return self._values(self.codes, ranges, (self.rows, self.blocks, self.stored // self.blocks))

    def _ranges(self, of: Callable[[Tensor], Tensor]) -> Ranges:
        """Return scale, offset and zero point, each as ``of`` makes it from that of all groups."""
        return of(self.scale), *(None if each is None else of(each) for each in (self.offset, self.zero))  # type: ignore[return-value]

    def _by_row(self, ranges: Tensor) -> Tensor:
        """Return ranges of groups ``[groups, blocks]`` as float32 ranges of rows ``[rows, blocks]``."""
        if self.height > 1:
            ranges = ranges[:, None].expand(-1, self.height, -1).reshape(-1, self.blocks)[: self.rows]
        return ranges.float()

    def _values(self, codes: Tensor, ranges: Ranges, shape: tuple[int, ...]) -> Tensor:
        """Return the weights ``[rows, columns]`` of codes ``[rows, bytes]``, as ``shape`` where ranges meet them."""
        scale, offset, zero = ranges
        values = unpack(codes, self.bits, self.stored).float()
        plain = shape[1:] == (self.stored,)
        values = values if plain else values.reshape(shape)
        if offset is None:
            values = (values - (2 ** (self.bits - 1) if zero is None else zero.float())) * scale.float()
        else:
            values = values * scale.float() + offset.float()
        values = values if plain else values.reshape(-1, self.stored)
        return values if self.stored == self.columns else values[:, : self.columns]


class PackedLinear(Packed):
    """``y = x Wᵀ + b`` with packed W; it is unpacked at every use.

    In an ONNX graph 4-bit codes in blocks of a power of two from 16 on, symmetric and with per-row scales, become
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
    def of(cls, linear: nn.Linear, clip: float = 0.0, tied: Packed | None = None, **packing: Any) -> PackedLinear:
        """Return a linear layer with its weight packed, pruned ones as an exact 0; the bias is the same parameter.

        Args:
            linear: The layer.
            clip: See ``Packed.fill``.
            tied: What was made of a module with the same weight, whose form and codes this one has then.
            packing: The form otherwise.
        """
        form = _keeping(linear, packing) if tied is None else Packed.describe(tied)
        made = cls(linear.in_features, linear.out_features, linear.bias is not None, **form)
        made._take(linear, clip, tied)
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


class PackedEmbedding(Packed):
    """A table of vectors with packed rows; only the rows that are looked up are unpacked.

    Args:
        num_embeddings: Rows.
        embedding_dim: Channels of a row.
        padding_idx: The row of padding, as in the layer that it was made from; nothing is done with it.
        embed_scale: What the vectors are multiplied by when they are looked up, as in BART.
        packing: Further arguments of ``Packed``.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        embed_scale: float = 1.0,
        **packing: Any,
    ) -> None:
        super().__init__(num_embeddings, embedding_dim, **packing)
        self.num_embeddings, self.embedding_dim, self.padding_idx = num_embeddings, embedding_dim, padding_idx
        self.embed_scale = embed_scale

    @classmethod
    def of(cls, table: nn.Embedding, clip: float = 0.0, tied: Packed | None = None, **packing: Any) -> PackedEmbedding:
        """Return a table with its rows packed, pruned numbers as an exact 0; the arguments are those of a layer's."""
        form = _keeping(table, packing) if tied is None else Packed.describe(tied)
        scale = float(getattr(table, "embed_scale", 1.0))
        made = cls(table.num_embeddings, table.embedding_dim, table.padding_idx, scale, **form)
        made._take(table, clip, tied)
        return made.train(table.training)

    def describe(self) -> dict[str, Any]:
        """Return how it is built again, as plain JSON."""
        names = ("num_embeddings", "embedding_dim", "padding_idx", "embed_scale")
        return {name: getattr(self, name) for name in names} | super().describe()

    @property
    def weight(self) -> Tensor:
        """The whole table, unpacked; a change of it is lost."""
        return self.matrix()

    def forward(self, ids: Tensor) -> Tensor:
        """Return the vectors ``[…, embedding_dim]`` of ids ``[…]``."""
        flat = ids.reshape(-1)
        group = flat if self.height == 1 else torch.div(flat, self.height, rounding_mode="trunc")
        shape: tuple[int, ...] = (-1, self.stored)
        ranges = self._ranges(lambda each: each[group])
        if self.blocks > 1:
            shape, ranges = (
                (-1, self.blocks, self.stored // self.blocks),
                self._ranges(lambda each: each[group][..., None]),
            )
        if self._has_operator() and torch.onnx.is_in_onnx_export():  # in the shape that a tied product has them in
            codes = self.codes.reshape(self.rows, self.blocks, -1)[flat].flatten(1)
        else:
            codes = self.codes[flat]
        vectors = self._values(codes, ranges, shape).reshape(*ids.shape, self.columns)
        return vectors if self.embed_scale == 1 else vectors * self.embed_scale


def _keeping(module: nn.Module, packing: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments with zero points where the grid would have no 0 and weights are pruned."""
    return packing | {"zero_points": is_masked(module) and not packing.get("symmetric", False)}


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
