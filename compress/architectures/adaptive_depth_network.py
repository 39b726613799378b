"""A standard classifier that learns how many of its layers a text needs: adaptive computation time over its layers.

Graves 2016, arXiv 1603.08983. With one layer applied many times it is a Universal Transformer: Dehghani et al. 2019,
arXiv 1807.03819.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, PreTrainedConfig

from compress.architectures.leaving_network import LeavingNetwork, LeavingOutput, Reached
from compress.architectures.wrapped_encoder import AroundConfig, labels_of, named_inputs, register_around
from teachers.anatomy.encoder import layer_count
from teachers.anatomy.forms.linear_form import in_linear_form
from teachers.anatomy.segments import run_layers


class AdaptiveDepthConfig(AroundConfig):
    """Config of a classifier that halts by itself.

    Args:
        inner: Config of the classifier, or its fields.
        first: Place of the token that stands for the text: 0, or -1 where padding is on the left.
        speed: Graves' epsilon: a text halts once no more of its halting probability than this is missing to 1. 0 runs
            every layer, those after the whole 1 with weight 0.
        kwargs: What every config of transformers has.
    """

    model_type = "compress-adaptive-depth"

    def __init__(
        self,
        inner: PreTrainedConfig | dict[str, Any] | None = None,
        first: int = 0,
        speed: float = 0.01,
        **kwargs: Any,
    ) -> None:
        self.first, self.speed = first, speed
        super().__init__(inner, **kwargs)


@dataclass
class AdaptiveDepthOutput(LeavingOutput):
    """What the network returns.

    Attributes:
        ponder: Ponder cost of each row, N + R, ``[B]``; not of ``answer``.
    """

    ponder: Tensor | None = None


class Halting(NamedTuple):
    """When each row halts.

    Attributes:
        weights: What the states after each layer weigh in their mean, ``[B, layers]``; each row sums to 1.
        layers: N, how many layers count, int64 ``[B]``.
        ponder: N + R, ``[B]``; its gradient is that of the remainder R, as N is a number of steps.
    """

    weights: Tensor
    layers: Tensor
    ponder: Tensor


def halting(probabilities: Tensor, epsilon: float) -> Halting:
    """Return when rows halt, and what their states weigh until then: equations 4 to 9 of Graves 2016.

    ``N = min{n : sum of h_1 to h_n >= 1 - epsilon}``, at most the number of layers; ``R = 1 - sum of h_1 to h_(N-1)``;
    the weights are h_n before N, R at N and 0 after it.

    Args:
        probabilities: h, what the halting unit says after each layer, ``[B, layers]``.
        epsilon: Above.

    Examples:
        >>> import torch
        >>> found = halting(torch.tensor([[0.25, 0.5, 0.5, 0.5]]), 0.01)
        >>> found.weights.tolist(), found.layers.tolist(), found.ponder.tolist()
        ([[0.25, 0.5, 0.25, 0.0]], [3], [3.25])
    """
    sums, places = probabilities.cumsum(dim=1), torch.arange(probabilities.shape[1], device=probabilities.device)
    reached = (sums >= 1 - epsilon) | (places == len(places) - 1)
    last = reached.int().argmax(dim=1, keepdim=True)
    remainder = 1 - (sums - probabilities).gather(1, last)
    weights = torch.where(places < last, probabilities, torch.where(places == last, remainder, 0.0))
    return Halting(weights, last[:, 0] + 1, last[:, 0] + 1 + remainder[:, 0])


class AdaptiveDepthForSequenceClassification(LeavingNetwork):
    """A standard classifier, and a unit that says after each layer how much of its answer a text has.

    The unit reads the token that stands for the text, and the text halts as a whole. The head reads the mean of the
    states after all layers that ran, weighted by ``halting``. Called as it is, every layer runs; ``answer`` gives the
    same logits and skips the layers after the last one that counts.

    Between two layers a text takes with it, side by side in ``[B, L, 2 d + 1]``, its states, the weighted sum of the
    earlier ones, and how much they weigh.
    """

    config_class = AdaptiveDepthConfig

    def __init__(self, config: AdaptiveDepthConfig) -> None:
        super().__init__(config)
        self.inner = in_linear_form(AutoModelForSequenceClassification.from_config(config.inner))
        self.halting = nn.Linear(config.hidden_size, 1)
        self.post_init()

    @classmethod
    def around(cls, network: Any, start: float = 0.1, **fields: Any) -> AdaptiveDepthForSequenceClassification:
        """Return a network whose standard part is this very one, with a new halting unit.

        Args:
            network: A standard classifier.
            start: What the unit says of every text at first.
            fields: Those of ``AdaptiveDepthConfig``.
        """
        made = cls(
            AdaptiveDepthConfig(
                network.config, problem_type=network.config.problem_type, **labels_of(network), **fields
            )
        )
        made.inner = network
        nn.init.zeros_(made.halting.weight)
        nn.init.constant_(made.halting.bias, math.log(start / (1 - start)))
        made.train(network.training)
        return made

    @property
    def stops(self) -> list[int]:
        """A text may leave after every layer."""
        return list(range(1, layer_count(self.inner) + 1))

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> AdaptiveDepthOutput:
        """Return logits ``[B, C]``, the number of layers that count, and the ponder cost; every layer runs."""
        del kwargs
        inputs = named_inputs(input_ids, attention_mask, token_type_ids)
        states: list[Tensor] = []
        for layer in range(layer_count(self.inner)):
            before = states[-1] if states else None
            states.append(run_layers(self.inner, inputs, layer, layer + 1, before, head=False))
        found = halting(torch.cat([self._halts(one)[..., 0] for one in states], dim=1).float(), self.config.speed)
        mean = torch.zeros_like(states[0])
        for weight, one in zip(found.weights.to(mean.dtype).unbind(dim=1), states, strict=True):
            mean = mean + weight[:, None, None] * one
        return AdaptiveDepthOutput(logits=self._head(inputs, mean), layers=found.layers, ponder=found.ponder)

    def run_to(self, exit_: int, inputs: Mapping[str, Tensor], mask: Tensor, hidden: Tensor | None) -> Reached:
        """Run one layer; the uncertainty is what is still missing of the weights' sum of 1."""
        del mask
        width, states = self.config.hidden_size, None
        total: Tensor | float = 0.0
        if hidden is not None:
            states, total, weight = torch.split(hidden, [width, width, 1], dim=-1)
        states = run_layers(self.inner, inputs, exit_, exit_ + 1, states, head=False)
        remainder = torch.ones_like(states[..., :1]) if hidden is None else 1 - weight
        logits = self._head(inputs, total + remainder * states)
        if exit_ + 1 == len(self.stops):
            return Reached(None, logits, torch.zeros_like(logits[:, 0]))
        share = torch.minimum(self._halts(states), remainder)
        left = remainder - share
        kept = torch.cat([states, total + share * states, 1 - left], dim=-1)
        return Reached(kept, logits, left[:, 0, 0])

    def _halts(self, states: Tensor) -> Tensor:
        """Return the halting probability after a layer, ``[B, 1, 1]``."""
        place = slice(-1, None) if self.config.first else slice(0, 1)
        return torch.sigmoid(self.halting(states[:, place]))

    def _head(self, inputs: Mapping[str, Tensor], states: Tensor) -> Tensor:
        """Return what the standard head makes of states ``[B, L, d]``."""
        count = layer_count(self.inner)
        return run_layers(self.inner, inputs, count, count, states)


register_around(AdaptiveDepthConfig, {AutoModelForSequenceClassification: AdaptiveDepthForSequenceClassification})
