"""What networks around a standard one share whose inputs need not run through all of its layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from transformers.modeling_outputs import SequenceClassifierOutput

from compress.architectures.wrapped_encoder import AroundNetwork, added, named_inputs


class Reached(NamedTuple):
    """What is known where inputs may leave.

    Attributes:
        states: What those that go on take with them, ``[B, L, channels]``; None at the last exit.
        logits: The answer of those that leave, ``[B, C]``.
        uncertainty: An input leaves if this is at most the speed, ``[B]``, 0 to 1.
    """

    states: Tensor | None
    logits: Tensor
    uncertainty: Tensor


@dataclass
class LeavingOutput(SequenceClassifierOutput):  # type: ignore[misc]
    """What such a network returns.

    Attributes:
        layers: Layers that each input ran through, or needs to, int64 ``[B]``; not of every forward pass.
    """

    layers: Tensor | None = None


class LeavingNetwork(AroundNetwork):
    """A network around a standard classifier, its ``inner``, that an input leaves at the first exit where it may.

    The config has the field ``speed``: the uncertainty up to which an input leaves; 0 runs every layer.
    """

    @property
    def stops(self) -> list[int]:
        """How many layers have run at each exit, the last one included."""
        raise NotImplementedError(f"{type(self).__name__} does not implement stops")

    def run_to(self, exit_: int, inputs: Mapping[str, Tensor], mask: Tensor, hidden: Tensor | None) -> Reached:
        """Run the layers between two exits.

        Args:
            exit_: The exit to run to, from 0.
            inputs: Of ``forward``, without None.
            mask: What ``added`` makes of ``attention_mask``.
            hidden: ``Reached.states`` of the exit before; None for the first.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement run_to")

    def answer(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> LeavingOutput:
        """Return the logits of the exit where each row leaves, and the layers that ran.

        Rows that have left are taken out of the batch; what remains goes on.
        """
        inputs = named_inputs(input_ids, attention_mask, token_type_ids)
        mask = added(inputs["attention_mask"], self.dtype)
        rows, hidden = torch.arange(len(input_ids), device=input_ids.device), None
        logits = torch.empty(len(rows), self.config.num_labels, device=rows.device, dtype=self.dtype)
        layers = torch.empty_like(rows)
        for exit_, stop in enumerate(self.stops):
            hidden, found, uncertainty = self.run_to(exit_, inputs, mask, hidden)
            logits[rows], layers[rows] = found.to(logits.dtype), stop  # in mixed precision they are of the lower one
            on = stays(uncertainty, self.config.speed)
            if hidden is None or not bool(on.any()):
                break
            rows, hidden, mask = rows[on], hidden[on], mask[on]
            inputs = {name: tensor[on] for name, tensor in inputs.items()}
        return LeavingOutput(logits=logits, layers=layers)


def stays(uncertainty: Tensor, speed: float | Tensor) -> Tensor:
    """Return which rows do not leave, boolean ``[B]``: ``u > speed``, and all where speed is 0."""
    return (uncertainty > speed) | (torch.as_tensor(speed) <= 0)
