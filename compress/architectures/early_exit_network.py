"""A standard classifier with further classifiers after its layers, so that an easy input leaves before the last one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, PreTrainedConfig

from compress.architectures.leaving_network import LeavingNetwork, LeavingOutput, Reached, stays
from compress.architectures.wrapped_encoder import AroundConfig, added, labels_of, named_inputs, register_around
from teachers.anatomy.encoder import layer_count
from teachers.anatomy.forms.linear_form import in_linear_form
from teachers.anatomy.segments import run_layers


class EarlyExitConfig(AroundConfig):
    """Config of a classifier with early exits.

    Args:
        inner: Config of the classifier, or its fields.
        exits: Layers after which a branch answers, ascending, without the last layer.
        branch_size: Width of a branch.
        branch_heads: Attention heads of a branch.
        first: Place of the token that stands for the text: 0, or -1 where padding is on the left.
        speed: Uncertainty up to which an input leaves, 0 to 1; 0 runs every layer.
        kwargs: What every config of transformers has.
    """

    model_type = "compress-early-exit"

    def __init__(
        self,
        inner: PreTrainedConfig | dict[str, Any] | None = None,
        exits: Sequence[int] = (),
        branch_size: int = 128,
        branch_heads: int = 2,
        first: int = 0,
        speed: float = 0.5,
        **kwargs: Any,
    ) -> None:
        self.exits = list(exits)
        self.branch_size, self.branch_heads = branch_size, branch_heads
        self.first, self.speed = first, speed
        super().__init__(inner, **kwargs)


@dataclass
class EarlyExitOutput(LeavingOutput):
    """What the network returns.

    Attributes:
        exit_logits: Logits of all branches ``[B, exits, C]``; only of a forward pass in training.
    """

    exit_logits: Tensor | None = None


class Branch(nn.Module):
    """A classifier for the states of one layer: dense, tanh, self-attention, first token, dense, tanh, classes.

    Of the attention only the first token is read, so only its query is computed; with a single query, a head is a mask
    over channels.

    Args:
        config: Sizes.
    """

    def __init__(self, config: EarlyExitConfig) -> None:
        super().__init__()
        size = self.size = config.branch_size
        self.heads, self.first = config.branch_heads, config.first
        self.narrow = nn.Linear(config.hidden_size, size)
        self.query, self.key, self.value = nn.Linear(size, size), nn.Linear(size, size), nn.Linear(size, size)
        self.output = nn.Linear(size, size)
        self.dense = nn.Linear(size, size)
        self.classifier = nn.Linear(size, config.num_labels)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """Return logits ``[B, C]`` for states ``[B, L, d]``; ``mask`` ``[B, 1, L]`` is added to attention scores."""
        narrow = torch.tanh(self.narrow(states))
        width = self.size // self.heads
        places = torch.arange(self.size, device=narrow.device)
        own = (places // width == places[: self.heads, None]).to(narrow.dtype)
        query = self.query(narrow[:, -1:] if self.first else narrow[:, :1]) * own / math.sqrt(width)
        share = (query @ self.key(narrow).transpose(1, 2) + mask).softmax(dim=-1)
        text = self.output((share @ self.value(narrow) * own).sum(dim=1))
        logits: Tensor = self.classifier(torch.tanh(self.dense(text)))
        return logits


class EarlyExitForSequenceClassification(LeavingNetwork):
    """A standard classifier, frozen, and a branch after each of some layers.

    Called as it is, it gives the last classifier's logits, those of the standard network bit for bit; ``answer`` leaves
    early. The standard network is never in training mode: it is the branches' teacher, and dropout would make it noisy.
    """

    config_class = EarlyExitConfig

    def __init__(self, config: EarlyExitConfig) -> None:
        super().__init__(config)
        self.inner = in_linear_form(AutoModelForSequenceClassification.from_config(config.inner))
        self.branches = nn.ModuleDict({str(layer): Branch(config) for layer in config.exits})
        self.post_init()

    @classmethod
    def around(cls, network: Any, **fields: Any) -> EarlyExitForSequenceClassification:
        """Return a network whose standard part is this very one, with new branches.

        Args:
            network: A standard classifier.
            fields: Those of ``EarlyExitConfig``.
        """
        made = cls(EarlyExitConfig(network.config, **labels_of(network), **fields))
        made.inner = network
        made.eval()
        return made

    def train(self, mode: bool = True) -> EarlyExitForSequenceClassification:
        """Switch the branches to training or back; the standard network stays as it answers."""
        super().train(mode)
        self.inner.eval()
        return self

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        output_hidden_states: bool = False,
        **kwargs: Any,
    ) -> EarlyExitOutput:
        """Return the last classifier's logits ``[B, C]``; in training, those of all branches too.

        Gradients of a training reach the branches alone.
        """
        inputs = named_inputs(input_ids, attention_mask, token_type_ids)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.training):
            found = self.inner(**inputs, output_hidden_states=output_hidden_states or self.training, **kwargs)
        outputs = EarlyExitOutput(logits=found.logits, hidden_states=found.hidden_states)
        if self.training:
            outputs["exit_logits"] = self._exits(found.hidden_states, inputs["attention_mask"])
        return outputs

    def every_answer(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Return the logits of all classifiers ``[B, exits + 1, C]``, of the branches first; every layer runs."""
        inputs = named_inputs(input_ids, attention_mask, token_type_ids)
        found = self.inner(**inputs, output_hidden_states=True)
        return torch.cat([self._exits(found.hidden_states, inputs["attention_mask"]), found.logits[:, None]], dim=1)

    def _exits(self, states: Sequence[Tensor], attention_mask: Tensor) -> Tensor:
        mask = added(attention_mask, self.dtype)
        exits = [self.branches[str(layer)](states[layer + 1], mask) for layer in self.config.exits]
        return torch.stack(exits, dim=1)

    @property
    def stops(self) -> list[int]:
        """How many layers run before each classifier answers, the last one included."""
        return [*(layer + 1 for layer in self.config.exits), layer_count(self.inner)]

    def run_to(self, exit_: int, inputs: Mapping[str, Tensor], mask: Tensor, hidden: Tensor | None) -> Reached:
        """Run the layers between two exits; the number of branches is the last classifier."""
        start, stop = [0, *self.stops][exit_ : exit_ + 2]
        found = run_layers(self.inner, inputs, start, stop, hidden)
        if exit_ == len(self.config.exits):
            return Reached(None, found, uncertainty(found))
        logits = self.branches[str(stop - 1)](found, mask)
        return Reached(found, logits, uncertainty(logits))


def uncertainty(logits: Tensor) -> Tensor:
    """Return the entropy of each row's probabilities divided by its largest, ``log C``: 0 to 1, ``[B]``.

    Args:
        logits: ``[B, C]``.
    """
    entropy = -(logits.softmax(dim=-1) * logits.log_softmax(dim=-1)).sum(dim=-1)
    return (entropy / math.log(logits.shape[-1])).clamp(0, 1)


def goes_on(logits: Tensor, speed: float | Tensor) -> Tensor:
    """Return which rows are not certain enough to leave, boolean ``[B]``: ``u > speed``, and all where speed is 0."""
    return stays(uncertainty(logits), speed)


register_around(EarlyExitConfig, {AutoModelForSequenceClassification: EarlyExitForSequenceClassification})
