"""A standard classifier whose layers go on with fewer and fewer tokens: those that the others attend to most.

In a layer, between attention and feed-forward network, tokens are ranked by the attention that they receive; some of
them go on, and later layers see no others. A head that reads the first token alone gets its answer all the same.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, PreTrainedConfig
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from compress.architectures.wrapped_encoder import (
    AroundConfig,
    AroundNetwork,
    added,
    labels_of,
    named_inputs,
    register_around,
)
from teachers.anatomy.encoder import layer_count, layer_names, layers, max_tokens, part_names
from teachers.anatomy.segments import exchanged, run_layers, twin_of

WHOLE = 1000
"""Shares are kept in parts of this, as integers: then every runtime counts the same tokens, without rounding."""
FIRST, PADDING = 1e9, -1.0
"""Where the first token and padding stand among significances, which lie between 0 and heads x tokens."""
WATCHED = "compress-watched"
"""Name of the attention that tells how much of it each token receives."""


class TokenPruningConfig(AroundConfig):
    """Config of a classifier that drops tokens.

    Args:
        inner: Config of the classifier, or its fields.
        keep: For each layer but the last the thousandths of a text's tokens that go on from it, never rising.
        kwargs: What every config of transformers has.
    """

    model_type = "compress-token-pruning"

    def __init__(
        self, inner: PreTrainedConfig | dict[str, Any] | None = None, keep: Sequence[int] = (), **kwargs: Any
    ) -> None:
        self.keep = list(keep)
        super().__init__(inner, **kwargs)


class Retention(nn.Module):
    """How much of a token goes on from a layer while it is learned, by its rank: the soft extract layer of PoWER-BERT.

    Args:
        layers: Layers that can drop tokens.
        ranks: Numbers for each of them: a token of rank k among n has number ``floor(k * ranks / n)``.
        rate: Peak learning rate.
    """

    def __init__(self, layers: int, ranks: int, rate: float) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.ones(layers, ranks))
        self.rate = rate

    def rates(self) -> dict[str, float]:
        """Return the own learning rate of the numbers."""
        return {"values": self.rate}

    def at_step(self, step: int, total: int) -> bool:
        """Bring the numbers back between 0 and 1; return whether all steps are made."""
        with torch.no_grad():
            self.values.clamp_(0, 1)
        return step >= total

    def factors(self, layer: int, significance: Tensor, mask: Tensor) -> Tensor:
        """Return what the states of tokens are multiplied by, ``[B, L]``; the first token's and padding's is 1.

        Args:
            layer: The layer.
            significance: ``[B, L]``.
            mask: 1 for real tokens, ``[B, L]``.
        """
        rank = ranking(significance, mask).argsort(dim=1, descending=True).argsort(dim=1)
        length = mask.sum(dim=1, keepdim=True)
        place = (rank * self.values.shape[1] // length).clamp(max=self.values.shape[1] - 1)
        return torch.where((rank > 0) & mask.bool(), self.values[layer][place], 1.0)


class TokenPruningForSequenceClassification(AroundNetwork):
    """A standard classifier that drops tokens on the way.

    Attributes:
        inner: The standard classifier.
        retention: There only while shares are learned; no layer but the last one drops tokens then.
    """

    config_class = TokenPruningConfig

    def __init__(self, config: TokenPruningConfig) -> None:
        super().__init__(config)
        self.inner = AutoModelForSequenceClassification.from_config(config.inner)
        self.post_init()

    @property
    def shape_reach(self) -> int:
        """Three tokens less than a text has that keeps more of them than short ones do, whatever the share."""
        return min(max_tokens(self.inner.config), WHOLE + 3) - 3

    @classmethod
    def around(cls, network: Any, keep: Sequence[int]) -> TokenPruningForSequenceClassification:
        """Return a network whose standard part is this very one.

        Args:
            network: A standard classifier.
            keep: See ``TokenPruningConfig``.
        """
        made = cls(
            TokenPruningConfig(network.config, keep, problem_type=network.config.problem_type, **labels_of(network))
        )
        made.inner = network
        made.train(network.training)
        return made

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """Return logits ``[B, C]``."""
        del kwargs
        inputs = named_inputs(input_ids, attention_mask, token_type_ids)
        mask, states = inputs["attention_mask"], None
        text, size = mask.sum(dim=1, keepdim=True), input_ids.shape[1]
        for layer in range(layer_count(self.inner)):
            inputs["attention_mask"] = added(mask, self.dtype)[:, None]
            passing, network = self._passing(layer, mask, text, size), self.inner
            if passing is not None:
                network = through(self.inner, layer, passing)
            states = run_layers(network, inputs, layer, layer + 1, states)
            mask = mask if passing is None else passing.mask
        return SequenceClassifierOutput(logits=states)

    def _passing(self, layer: int, mask: Tensor, text: Tensor, size: int) -> Passing | None:
        """Return what the tokens of a layer pass through; None if all of them go on as they are."""
        if layer == layer_count(self.inner) - 1:
            return OnlyFirst(mask)
        retention: Retention | None = getattr(self, "retention", None)
        if retention is not None:
            return Scaled(mask, retention, layer)
        keep = self.config.keep[layer]
        return None if keep >= WHOLE else MostSignificant(mask, counted(text, keep), counted(size, keep))


class Passing:
    """What the states of tokens pass through between attention and feed-forward network.

    Args:
        mask: 1 for real tokens, ``[B, L]``; afterwards of those that go on.
    """

    watches = True
    """Whether it asks how much attention each token receives."""

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask
        self.significance: Tensor = torch.empty(0)

    def watch(self, probabilities: Tensor) -> None:
        """Be told of attention probabilities ``[B, heads, L, L]``."""
        self.significance = significance(probabilities, self.mask)

    def __call__(self, states: Tensor) -> Tensor:
        """Return the states ``[B, K, d]`` that go on, for ``[B, L, d]``."""
        raise NotImplementedError


class OnlyFirst(Passing):
    """The first token alone, which is all that the head reads of the last layer."""

    watches = False

    def __call__(self, states: Tensor) -> Tensor:
        """Return ``[B, 1, d]``."""
        self.mask = self.mask[:, :1]
        return states[:, :1]


class MostSignificant(Passing):
    """The tokens of highest significance, the first token before all others: the extract layer of PoWER-BERT.

    Args:
        mask: See ``Passing``.
        counts: How many tokens go on, ``[B, 1]``.
        most: Places that the batch needs for them.
    """

    def __init__(self, mask: Tensor, counts: Tensor, most: int) -> None:
        super().__init__(mask)
        self.counts, self.most = counts, most

    def __call__(self, states: Tensor) -> Tensor:
        """Return ``[B, most, d]``, the most significant token first."""
        places = ranking(self.significance, self.mask).topk(self.most, dim=1).indices
        rows, length, width = states.shape
        flat = places + torch.arange(rows, device=places.device)[:, None] * length
        self.mask = (torch.arange(self.most, device=places.device) < self.counts).to(self.mask.dtype)
        return states.reshape(-1, width).index_select(0, flat.reshape(-1)).reshape(rows, -1, width)


class Scaled(Passing):
    """All tokens, each multiplied by the retention of its rank.

    Args:
        mask: See ``Passing``.
        retention: Gives the factors.
        layer: Of this layer.
    """

    def __init__(self, mask: Tensor, retention: Retention, layer: int) -> None:
        super().__init__(mask)
        self.retention, self.layer = retention, layer

    def __call__(self, states: Tensor) -> Tensor:
        """Return ``[B, L, d]``."""
        return states * self.retention.factors(self.layer, self.significance, self.mask)[..., None].to(states.dtype)


def significance(probabilities: Tensor, mask: Tensor) -> Tensor:
    """Return the attention that each token receives, ``[B, L]``: the sum over heads and over real tokens as queries.

    Args:
        probabilities: Attention ``[B, heads, queries, keys]``.
        mask: 1 for real tokens, ``[B, L]``.
    """
    return (mask[:, None, None].to(probabilities.dtype) @ probabilities).sum(dim=(1, 2))


def ranking(significance: Tensor, mask: Tensor) -> Tensor:
    """Return numbers ``[B, L]`` that order tokens: the first one highest, padding lowest.

    Args:
        significance: ``[B, L]``.
        mask: 1 for real tokens, ``[B, L]``.
    """
    first = torch.arange(mask.shape[1], device=mask.device) == 0
    real = torch.where(mask.bool(), significance.float(), PADDING)
    return torch.where(first, FIRST, real)


def counted(length: Any, keep: int) -> Any:
    """Return how many of ``length`` tokens ``keep`` thousandths are, rounded up: an integer or a tensor of integers."""
    return (length * keep + WHOLE - 1) // WHOLE


def through(network: Any, layer: int, passing: Passing) -> Any:
    """Return a shallow copy of a network in which the tokens of a layer pass through something; weights are shared.

    Args:
        network: A classifier whose layers are BERT's: attention, add, norm, feed-forward network, add, norm.
        layer: The layer; where others run the same module, nothing else of the copy may be run.
        passing: Behind the norm that follows the attention.
    """
    path, parts = layer_names(network)[layer], part_names(network, layers(network)[layer])
    norm = f"{path}.{parts['attention_norm']}"
    network = exchanged(network, norm, _Followed(network.get_submodule(norm), passing))
    if passing.watches:
        attention = f"{path}.{parts['query'].rpartition('.')[0]}"
        watched = twin_of(network.get_submodule(attention))
        watched.config = copy.copy(watched.config)
        watched.config._attn_implementation = WATCHED
        watched.watch = passing.watch
        network = exchanged(network, attention, watched)
    return network


class _Followed(nn.Module):
    """A module, and what its result passes through."""

    def __init__(self, module: nn.Module, passing: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.module, self.passing = module, passing

    def forward(self, states: Tensor) -> Tensor:
        return self.passing(self.module(states))


def _watched_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Return what attention gives, ``[B, L, heads, head width]``, and its probabilities, after they were watched."""
    del kwargs
    scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    probabilities = (scores + attention_mask).softmax(dim=-1)
    module.watch(probabilities)
    shares = nn.functional.dropout(probabilities, p=dropout, training=module.training)
    return (shares @ value).transpose(1, 2).contiguous(), probabilities


ALL_ATTENTION_FUNCTIONS.register(WATCHED, _watched_attention)
register_around(TokenPruningConfig, {AutoModelForSequenceClassification: TokenPruningForSequenceClassification})
