"""Layers that compute as 8-bit integers do: rounded while they are trained, then frozen with their codes alone."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (the field's own abbreviation)

from compress.modules.int8_scheme import LEVELS
from compress.modules.masked import is_masked, masked, without_gradient_of_zeros
from teachers.anatomy.parts import replace_parts

LEAST = 1e-12
"""Smallest range, so that a tensor of zeros divides nothing by 0."""
ACCUMULATOR = 2**31 - 1
"""Largest bias, in steps of weight times activation."""

Codes = tuple[Tensor, Tensor]
"""int8 codes and their float32 scale."""


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, step: Tensor, levels: int) -> Tensor:
        return to_grid(x, step, levels)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None, None


def steps_of(x: Tensor, step: Tensor, levels: int = LEVELS) -> Tensor:
    """Return ``clip(round(x / step), -levels, levels)``, halves to even, as float."""
    return (x / step).round().clamp(-levels, levels)


def to_grid(x: Tensor, step: Tensor, levels: int = LEVELS) -> Tensor:
    """Return the multiples of ``step`` nearest to ``x``, at most ``levels`` of them a side."""
    return steps_of(x, step, levels) * step


def fake_quantize(x: Tensor, largest: Tensor, levels: int = LEVELS) -> Tensor:
    """Round ``x`` to ``levels`` steps a side of ``largest``; the gradient passes as if nothing had happened.

    Args:
        x: Any shape.
        largest: The value of the last step, ``[]`` or of a shape that fits ``x``.
        levels: Steps a side.
    """
    rounded: Tensor = _StraightThrough.apply(x, largest.clamp_min(LEAST) / levels, levels)  # type: ignore[no-untyped-call]
    return rounded


def moved(average: Tensor, largest: Tensor, decay: float, observations: Tensor) -> Tensor:
    """Return the exponential moving average after one more observation, corrected for its start.

    ``m_t / (1 - decay^t)`` with ``m_t = decay · m_{t-1} + (1 - decay) · max|x|_t`` and ``m_0 = 0``, as in Adam (Kingma
    and Ba 2015, arXiv 1412.6980): the weighted mean of all observations so far. Without the correction an average that
    began at its first observation would still be that observation after a fine-tuning of some hundred steps.

    Args:
        average: The corrected average so far.
        largest: The new observation.
        decay: Of the average; 0 takes the new observation.
        observations: How many there are now, the new one counted.
    """
    rate = (1 - decay) / (1 - decay ** observations.double())
    return average + rate.to(average.dtype) * (largest - average)


class MovingRange(nn.Module):
    """Rounds what passes to 127 steps a side of a moving average of max|x|, which only training moves.

    Before the first observation the range is that of the tensor itself.
    """

    largest: Tensor
    observations: Tensor

    def __init__(self, decay: float) -> None:
        super().__init__()
        self.decay = decay
        self.register_buffer("largest", torch.zeros(()))
        self.register_buffer("observations", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x``, rounded."""
        x = x.float()
        if self.training:
            with torch.no_grad():
                self.observations += 1
                self.largest.copy_(moved(self.largest, x.abs().max(), self.decay, self.observations))
        return fake_quantize(x, torch.where(self.largest > 0, self.largest, x.detach().abs().max()))


class FakeQuantLinear(nn.Linear):
    """A linear layer in training, with rounded weights, inputs and, if wanted, outputs; pruned weights stay 0.

    Args:
        linear: Its parameters are taken over, not copied.
        levels: Steps a side of the weights: 127, or 64 for 7 bits.
        per_channel: Whether each output has its own range of weights.
        decay: Of the moving ranges.
        rounds_output: Whether outputs are rounded too.
        smooth: What each channel of the input is divided by before it is rounded, powers of 2 ``[in]``; the weights
            are rounded as they are when multiplied by it.
    """

    smooth: Tensor | None

    def __init__(
        self,
        linear: nn.Linear,
        levels: int,
        per_channel: bool,
        decay: float,
        rounds_output: bool,
        smooth: Tensor | None = None,
    ) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias, self.pruned = linear.weight, linear.bias, is_masked(linear)
        self.levels, self.per_channel = levels, per_channel
        self.input_range = MovingRange(decay)
        self.output_range = MovingRange(decay) if rounds_output else None
        self.register_buffer("smooth", smooth)

    def forward(self, x: Tensor) -> Tensor:
        """Return the rounded product of rounded numbers; the bias is rounded when the layer is frozen."""
        weight = without_gradient_of_zeros(self.weight) if self.pruned else self.weight
        if self.smooth is not None:
            x, weight = x / self.smooth, weight * self.smooth
        weight = fake_quantize(weight, largest_of(weight, self.per_channel), self.levels)
        y = F.linear(self.input_range(x), weight, self.bias)
        return y if self.output_range is None else self.output_range(y)

    def frozen(self, known: dict[int, Codes]) -> nn.Module:
        """Return the layer with its codes, or as it was in float if nothing ever passed it.

        Args:
            known: Codes by the id of the parameter, so that tied ones stay tied.
        """
        if not bool(self.input_range.largest > 0):
            plain = nn.Linear(self.in_features, self.out_features, self.bias is not None, device="meta")
            plain.weight, plain.bias = self.weight, self.bias
            return masked(plain) if self.pruned else plain
        new = Int8Linear(
            self.in_features,
            self.out_features,
            self.bias is not None,
            self.per_channel,
            self.output_range is not None,
            self.smooth is not None,
        )
        new.codes, new.scale = _codes(self.weight, self.per_channel, self.levels, known, self.smooth)
        if self.smooth is not None:
            new.smooth = self.smooth
        new.input_step = self.input_range.largest / LEVELS
        if self.output_range is not None:
            new.output_step = self.output_range.largest.clamp_min(LEAST) / LEVELS
        if self.bias is not None:
            step = (new.input_step * new.scale.reshape(-1)).double()
            steps = (self.bias.detach().double() / step).round()
            with torch.no_grad():  # beside a row of zeros, whose steps are none, a bias stays as it is
                self.bias.copy_(torch.where(steps.abs() <= ACCUMULATOR, steps * step, self.bias.double()))
            new.bias = self.bias
        return new


class FakeQuantEmbedding(nn.Embedding):
    """An embedding table in training, with rounded rows; the arguments are those of ``FakeQuantLinear``."""

    def __init__(self, table: nn.Embedding, levels: int, per_channel: bool) -> None:
        nn.Module.__init__(self)
        self.__dict__.update({name: value for name, value in vars(table).items() if not name.startswith("_")})
        self.weight, self.pruned = table.weight, is_masked(table)
        self.levels, self.per_channel = levels, per_channel

    def forward(self, ids: Tensor) -> Tensor:
        """Return rounded rows; only those looked up are rounded."""
        largest, rows = largest_of(self.weight, self.per_channel), super().forward(ids)
        rows = without_gradient_of_zeros(rows) if self.pruned else rows
        return fake_quantize(rows, largest[ids] if self.per_channel else largest, self.levels)

    def frozen(self, known: dict[int, Codes]) -> nn.Module:
        """Return the table with its codes."""
        new = Int8Embedding(self.num_embeddings, self.embedding_dim, self.padding_idx, self.per_channel)
        new.codes, new.scale = _codes(self.weight, self.per_channel, self.levels, known)
        return new


class Int8Linear(nn.Module):
    """A frozen linear layer: int8 codes, and fixed steps of inputs and outputs.

    Sums are those of integers, so they do not depend on the order in which a machine adds. With ``smooth`` the channels
    of the input are divided by powers of 2 first, and the codes are of weights multiplied by them.
    """

    sparse_tensors = ("codes",)
    codes: Tensor
    scale: Tensor
    input_step: Tensor
    output_step: Tensor
    smooth: Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool,
        per_channel: bool,
        rounds_output: bool,
        smoothed: bool = False,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.per_channel, self.rounds_output, self.smoothed = per_channel, rounds_output, smoothed
        self.register_buffer("codes", torch.zeros(out_features, in_features, dtype=torch.int8))
        self.register_buffer("scale", torch.ones((out_features, 1) if per_channel else ()))
        self.register_buffer("input_step", torch.ones(()))
        if rounds_output:
            self.register_buffer("output_step", torch.ones(()))
        if smoothed:
            self.register_buffer("smooth", torch.ones(in_features))
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None

    def describe(self) -> dict[str, Any]:
        """Return the arguments of the class."""
        return {
            "in_features": self.in_features,
            "out_features": self.out_features,
            "bias": self.bias is not None,
            "per_channel": self.per_channel,
            "rounds_output": self.rounds_output,
            **({"smoothed": True} if self.smoothed else {}),
        }

    @property
    def weight(self) -> Tensor:
        """The weights in float ``[out, in]``."""
        weight = self.codes * self.scale
        return weight / self.smooth if self.smoothed else weight

    def forward(self, x: Tensor) -> Tensor:
        """Return what integers give: ``step · scale · Σ q_x q_w + bias``, rounded again if outputs are."""
        x = x / self.smooth if self.smoothed else x
        sums = F.linear(steps_of(x, self.input_step), self.codes.to(x.dtype))
        y = sums * (self.input_step * self.scale.reshape(-1))
        if self.bias is not None:
            y = y + self.bias
        return to_grid(y, self.output_step) if self.rounds_output else y


class Int8Embedding(nn.Module):
    """A frozen embedding table: int8 codes and one scale, or one a row."""

    sparse_tensors = ("codes",)
    codes: Tensor
    scale: Tensor

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None, per_channel: bool) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim, self.padding_idx = num_embeddings, embedding_dim, padding_idx
        self.per_channel = per_channel
        self.register_buffer("codes", torch.zeros(num_embeddings, embedding_dim, dtype=torch.int8))
        self.register_buffer("scale", torch.ones((num_embeddings, 1) if per_channel else ()))

    def describe(self) -> dict[str, Any]:
        """Return the arguments of the class."""
        names = ("num_embeddings", "embedding_dim", "padding_idx", "per_channel")
        return {name: getattr(self, name) for name in names}

    @property
    def weight(self) -> Tensor:
        """The table in float ``[rows, width]``."""
        return self.codes * self.scale

    def forward(self, ids: Tensor) -> Tensor:
        """Return the rows of ``ids`` in float."""
        return self.codes[ids] * (self.scale[ids] if self.per_channel else self.scale)


def largest_of(weight: Tensor, per_channel: bool) -> Tensor:
    """Return max|w| of the whole matrix ``[]``, or of each row ``[out, 1]``; no gradient passes."""
    magnitude = weight.detach().abs()
    return magnitude.amax(dim=1, keepdim=True) if per_channel else magnitude.max()


def _codes(
    weight: Tensor, per_channel: bool, levels: int, known: dict[int, Codes], smooth: Tensor | None = None
) -> Codes:
    if id(weight) not in known:
        smoothed = weight.detach() if smooth is None else weight.detach() * smooth
        scale = largest_of(smoothed, per_channel).clamp_min(LEAST) / levels
        known[id(weight)] = (steps_of(smoothed, scale, levels).to(torch.int8), scale)
    return known[id(weight)]


def freeze(network: nn.Module) -> None:
    """Give every fake-quantized part of a network its codes, in place."""
    known: dict[int, Codes] = {}

    def frozen(part: nn.Module) -> nn.Module | None:
        return part.frozen(known) if isinstance(part, FakeQuantLinear | FakeQuantEmbedding) else None

    replace_parts(network, frozen)
    network.eval()


def rounds(network: nn.Module) -> bool:
    """Whether a network has frozen parts: the last bit of a float may then decide a whole step."""
    return any(isinstance(part, Int8Linear | Int8Embedding) for part in network.modules())


def frozen_ranges(network: nn.Module) -> dict[str, dict[str, Any]]:
    """Return fields of ``Int8`` for every frozen layer, by its paths: its range, its largest output, its smoothing."""
    found: dict[str, dict[str, Any]] = {"ranges": {}, "outputs": {}, "smooth": {}}
    for path, part in network.named_modules(remove_duplicate=False):
        if isinstance(part, Int8Linear):
            largest = float(part.input_step) * LEVELS
            found["ranges"][path] = [-largest, largest]
            if part.rounds_output:
                found["outputs"][path] = float(part.output_step) * LEVELS
            if part.smoothed:
                found["smooth"][path] = part.smooth.tolist()
    return found


def in_float(network: Any) -> Any:
    """Return a copy of a network with standard parts in place of frozen ones: the same weights, no rounding.

    A network without frozen parts is returned as it is.
    """

    def plain(part: nn.Module) -> nn.Module | None:
        new: nn.Linear | nn.Embedding
        if isinstance(part, Int8Linear):
            new = nn.Linear(part.in_features, part.out_features, part.bias is not None, device="meta")
            new.register_parameter("bias", part.bias)
        elif isinstance(part, Int8Embedding):
            new = nn.Embedding(part.num_embeddings, part.embedding_dim, part.padding_idx, device="meta")
        else:
            return None
        key = part.codes.data_ptr()
        weights.setdefault(key, nn.Parameter(part.weight))
        new.weight = weights[key]
        return new

    if not rounds(network):
        return network
    weights: dict[int, nn.Parameter] = {}
    copied = copy.deepcopy(network)
    replace_parts(copied, plain)
    return copied
