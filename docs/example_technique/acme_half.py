"""A technique of another package: the weights of linear layers in 16 bits."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from compress.technique import Inputs, Measure, Outcome, Technique
from teachers.anatomy.parts import matrices, replace_parts
from teachers.taskmodel import TaskModel


class HalfLinear(nn.Linear):
    """A linear layer with weights in float16 and products in float32."""

    def __init__(self, in_features: int, out_features: int, bias: bool) -> None:
        super().__init__(in_features, out_features, bias, dtype=torch.float16)

    def describe(self) -> dict[str, Any]:
        """Return the arguments that build it again; the weights are saved apart."""
        return {"in_features": self.in_features, "out_features": self.out_features, "bias": self.bias is not None}

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the outputs ``[..., out]`` for inputs ``[..., in]``."""
        return nn.functional.linear(hidden, self.weight.float(), None if self.bias is None else self.bias.float())


class Half(Technique):
    """Keep the weights of linear layers in 16 bits.

    ``w' = float16(w)``; products stay in float32, so any processor can run the result.

    Attributes:
        parts: ``layers`` for the linear layers of the transformer layers, ``pooler`` for that of the pooler.

    Needs: nothing.
    Reduces: bytes.
    Limits: the result cannot be trained; exports hold float32, as the exporter folds the conversion.
    Source: Micikevicius et al. 2018, arXiv 1710.03740 (the number format).
    """

    name: ClassVar[str] = "acme.half"
    reduces: ClassVar[frozenset[Measure]] = frozenset({"bytes"})
    freezes: ClassVar[bool] = True
    source: ClassVar[str] = "Micikevicius et al. 2018, arXiv 1710.03740"

    parts: tuple[Literal["layers", "pooler"], ...] = ("layers",)

    def apply(self, student: TaskModel, inputs: Inputs, generator: torch.Generator) -> Outcome:
        """Put a ``HalfLinear`` in the place of each of these layers; nothing is learned."""
        del inputs, generator
        chosen = {id(linear) for part in self.parts for linear in matrices(student.model, part).values()}
        replace_parts(student.model, lambda part: _half(part) if id(part) in chosen else None)
        return Outcome(student, facts={"linear_layers": len(chosen)})


def _half(linear: Any) -> HalfLinear:
    made = HalfLinear(linear.in_features, linear.out_features, linear.bias is not None)
    made.load_state_dict(linear.state_dict())
    return made
