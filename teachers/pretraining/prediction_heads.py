"""What answers the objectives of pretraining, from the hidden states of the last layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from eval.encoding import IGNORED
from teachers.anatomy.encoder import base_encoder, shape_of
from teachers.anatomy.mlm_head import head_modules, word_scores
from teachers.data.encoded_dataset import Batch


@dataclass(frozen=True)
class Answered:
    """Answers and what they should be.

    Attributes:
        logits: ``[N, classes]``, or ``[N]`` of yes.
        labels: ``[N]``; 0 or 1 for yes.
        weight: What the loss is multiplied by.
    """

    logits: Tensor
    labels: Tensor
    weight: float = 1.0


class Head(nn.Module):
    """Base of the heads: one term, asked for in one target.

    Args:
        target: Name of the target and of the term.
    """

    def __init__(self, target: str) -> None:
        super().__init__()
        self.target = target

    def begin(self, frequencies: Tensor) -> None:
        """Make what predicts words begin with how often each stands in the text; other heads have nothing to do.

        Then a new network need not learn this first, for which it would push all word embeddings in one direction.

        Args:
            frequencies: Share of each token in the text, above 0, ``[V]``.

        Source: Meister et al. 2023 (2212.09686).
        """

    def prepare(self, batch: Batch) -> Batch:
        """Return the batch as the network shall see it."""
        return batch

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Return over how many answers each term is a mean."""
        return {self.target: (batch.targets[self.target] != IGNORED).sum()}

    def forward(self, hidden: Tensor, batch: Batch) -> dict[str, Answered]:
        """Answer for hidden states ``[B, L, d]``, by the name of the term."""
        labels = batch.targets[self.target]
        asked = labels != IGNORED
        return {self.target: Answered(self.answer(hidden, asked), labels[asked])}

    def answer(self, hidden: Tensor, asked: Tensor) -> Tensor:
        """Return logits for the places that are asked for, or the rows where whole texts are."""
        raise NotImplementedError


class WordHead(Head):
    """The network's own head that predicts words.

    Args:
        network: A ``…ForMaskedLM`` or ``…ForCausalLM`` network.
        target: See ``Head``.
    """

    def __init__(self, network: Any, target: str) -> None:
        super().__init__(target)
        self.parts = head_modules(network)
        self._network = (network,)  # not a part of this module

    def begin(self, frequencies: Tensor) -> None:
        """Set the bias of the network's head, if it has one."""
        bias = self._network[0].get_output_embeddings().bias
        if bias is not None:
            begin_with(bias, frequencies)

    def answer(self, hidden: Tensor, asked: Tensor) -> Tensor:
        """Return ``[N, V]``."""
        return word_scores(self._network[0], hidden[asked])


class RecurrentHead(WordHead):
    """The network's own head, of a network that also attends to the hidden states of what stands before a sequence."""

    def prepare(self, batch: Batch) -> Batch:
        """Add the memory: the states of every layer over the tokens before, without a gradient.

        A sequence at the beginning of the text has a memory of zeros, as in the authors' code.
        """
        ids = batch.targets.get("memory")
        if ids is None:
            return batch
        there = ids[:, 0] != IGNORED
        inputs: dict[str, Tensor] = {"input_ids": ids.clamp_min(0), **self.order_of(batch)}
        if "token_type_ids" in batch.inputs:
            inputs["token_type_ids"] = torch.zeros_like(ids)
        with torch.no_grad():
            states = base_encoder(self._network[0])(**inputs, use_mems=True).mems
        memory = torch.stack(states) * there[None, None, :, None]
        return replace(batch, inputs={**batch.inputs, "mems": memory})

    def order_of(self, batch: Batch) -> dict[str, Tensor]:
        """Return what the network must be told of the order of the memory's tokens; nothing if they have one."""
        del batch
        return {}


class DecoderHead(Head):
    """What a decoder writes: the scores of all words that the network gives at each place."""

    def answer(self, hidden: Tensor, asked: Tensor) -> Tensor:
        """Return ``[N, V]``; ``hidden`` are scores already."""
        return hidden[asked]


class TokenHead(Head):
    """A linear classifier of tokens.

    Args:
        network: Gives the width.
        target: See ``Head``.
        classes: How many.
    """

    def __init__(self, network: Any, target: str, classes: int) -> None:
        super().__init__(target)
        self.classifier = _linear(network, shape_of(network.config).hidden_size, classes)

    def answer(self, hidden: Tensor, asked: Tensor) -> Tensor:
        """Return ``[N, classes]``."""
        logits: Tensor = self.classifier(hidden[asked])
        return logits


class TextHead(Head):
    """A pooler, which all such heads share, and a linear classifier of texts.

    Args:
        network: Gives the width.
        target: See ``Head``.
        classes: How many.
        pooler: What ``pooler`` returns.
    """

    def __init__(self, network: Any, target: str, classes: int, pooler: nn.Linear) -> None:
        super().__init__(target)
        self.pooler = pooler
        self.classifier = _linear(network, pooler.out_features, classes)

    def answer(self, hidden: Tensor, asked: Tensor) -> Tensor:
        """Return ``[rows, classes]``."""
        logits: Tensor = self.classifier(torch.tanh(self.pooler(hidden[asked, 0])))
        return logits


def begin_with(bias: nn.Parameter, frequencies: Tensor) -> None:
    """Set the bias of scores over all words to the logarithm of their frequencies, both ``[V]``."""
    with torch.no_grad():
        bias.copy_(frequencies.log())


def pooler(network: Any) -> nn.Linear:
    """Return a new pooler for a network, a dense layer that is followed by a hyperbolic tangent."""
    width = shape_of(network.config).hidden_size
    return _linear(network, width, width)


def _linear(network: Any, width: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(width, outputs)
    nn.init.normal_(layer.weight, std=getattr(network.config, "initializer_range", 0.02))
    nn.init.zeros_(layer.bias)
    return layer
