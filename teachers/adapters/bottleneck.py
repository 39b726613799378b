"""Bottleneck adapters within a layer; PEFT has none.

Both classes are those of torch with a part more, so every weight of the base keeps its name.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

START = 1e-3
"""Standard deviation of new weights, cut at two of them: a new adapter changes next to nothing."""


class Bottleneck(nn.Module):
    """``U f(D h + d) + u``, D ``[size, width]``, U ``[width, size]``.

    Args:
        width: Channels of h.
        size: Channels between.
        activation: f.
    """

    def __init__(self, width: int, size: int, activation: nn.Module) -> None:
        super().__init__()
        self.down, self.activation, self.up = nn.Linear(width, size), activation, nn.Linear(size, width)
        for layer in (self.down, self.up):
            nn.init.trunc_normal_(layer.weight, std=START, a=-2 * START, b=2 * START)
            nn.init.zeros_(layer.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return ``[..., width]`` for ``[..., width]``."""
        outputs: Tensor = self.up(self.activation(self.down(inputs)))
        return outputs


class LinearWithBottleneck(nn.Linear):
    """``h + U gelu(D h)`` with ``h = W x + bias`` (Houlsby et al. 2019, arXiv 1902.00751).

    Args:
        in_features: Channels of x.
        out_features: Channels of h.
        size: Channels of the bottleneck.
        bias: Whether the base has one.
    """

    def __init__(self, in_features: int, out_features: int, size: int, bias: bool = True) -> None:
        super().__init__(in_features, out_features, bias)
        self.size = size
        self.adapter = Bottleneck(out_features, size, nn.GELU())

    def describe(self) -> dict[str, Any]:
        """Return the arguments of the class."""
        sizes = {"in_features": self.in_features, "out_features": self.out_features, "size": self.size}
        return {**sizes, "bias": self.bias is not None}

    def forward(self, inputs: Tensor) -> Tensor:
        """Return ``[..., out]`` for ``[..., in]``."""
        states = super().forward(inputs)
        changed: Tensor = states + self.adapter(states)
        return changed


class NormWithBottleneck(nn.LayerNorm):
    """``norm(s + U relu(D norm(s)))`` (Pfeiffer et al. 2021, arXiv 2005.00247).

    Args:
        width: Channels of s.
        size: Channels of the bottleneck.
        eps: Of the base's norm.
    """

    def __init__(self, width: int, size: int, eps: float) -> None:
        super().__init__(width, eps)
        self.size = size
        self.adapter = Bottleneck(width, size, nn.ReLU())

    def describe(self) -> dict[str, Any]:
        """Return the arguments of the class."""
        return {"width": self.normalized_shape[0], "size": self.size, "eps": self.eps}

    def forward(self, inputs: Tensor) -> Tensor:
        """Return ``[..., width]`` for ``[..., width]``."""
        return super().forward(inputs + self.adapter(super().forward(inputs)))
