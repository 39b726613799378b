"""Longformer whose windows are blocks of plain operators: any length, no padding, and a graph that takes every length.

Standard code pads each input to a multiple of the window, cuts it with strides and branches on its length and on where
global attention is, which a traced graph keeps as it was at the traced input. Here the weights, their names and the
answers are the same, and a saved folder is a standard one.

A token sees those that are at most half a window away, and the first tokens, whose attention is global: they see all
tokens and are seen by all, with projections of their own. For classification that is the first token, for qa
the question, for other heads none, as in standard code.

Source: Beltagy et al. 2020, arXiv 2004.05150.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (the field's own abbreviation)
from transformers.models.longformer.modeling_longformer import (
    LongformerBaseModelOutputWithPooling,
    LongformerEncoder,
    LongformerForQuestionAnswering,
    LongformerForSequenceClassification,
    LongformerModel,
    LongformerSelfAttention,
)


@dataclass(frozen=True)
class Blocks:
    """How a batch is cut into blocks for one size of window.

    Attributes:
        size: Tokens of a block: half a window, or all tokens where they are fewer.
        count: Blocks.
        rest: Places of the last block that have no token.
        beside: Whether the blocks before and after are seen; there are none where one block holds all.
        mask: What is added to scores ``[B, 1, blocks, size, seen places]``.
    """

    size: Any
    count: Any
    rest: Any
    beside: bool
    mask: Any = None

    def own(self, tokens: Tensor) -> Tensor:
        """Return values of tokens ``[B, L, …]`` by block, ``[B, blocks, size, …]``."""
        padded = F.pad(tokens, (*_inner(tokens), 0, self.rest))
        return padded.reshape(tokens.shape[0], -1, self.size, *tokens.shape[2:])

    def seen(self, tokens: Tensor) -> Tensor:
        """Return for each block the values of the tokens that it may see, ``[B, blocks, seen places, …]``."""
        if not self.beside:
            return self.own(tokens)
        padded = F.pad(tokens, (*_inner(tokens), self.size, self.rest + self.size))
        every = padded.reshape(tokens.shape[0], -1, self.size, *tokens.shape[2:])
        return torch.cat([every[:, :-2], every[:, 1:-1], every[:, 2:]], dim=2)


@dataclass(frozen=True)
class FirstTokens:
    """The tokens at the beginning whose attention is global.

    Attributes:
        count: How many there are at most in a text of the batch.
        which: Those of each text among them, ``[B, count]``; None for the very first of each text alone.
    """

    count: Any
    which: Tensor | None


@dataclass(frozen=True)
class Sight:
    """What the tokens of a batch may see, the same for all layers.

    Attributes:
        windows: Half a window -> its blocks.
        first: The tokens with global attention, if there are some.
        padding: What is added to the scores of all tokens ``[B, 1, 1, L]``.
    """

    windows: dict[int, Blocks]
    first: FirstTokens | None
    padding: Tensor


class BlockAttention(LongformerSelfAttention):  # type: ignore[misc]
    """Longformer's attention by blocks; its ``attention_mask`` is a ``Sight``."""

    def forward(self, hidden_states: Tensor, attention_mask: Any = None, **_rest: Any) -> tuple[Tensor]:
        """Return ``[B, L, heads · head width]``, alone in a tuple as in standard code."""
        sight: Sight = attention_mask
        blocks, first = sight.windows[self.one_sided_attn_window_size], sight.first
        query = self._by_head(self.query(hidden_states) / math.sqrt(self.head_dim))
        key, value = self._by_head(self.key(hidden_states)), self._by_head(self.value(hidden_states))
        own = blocks.own(query).permute(0, 3, 1, 2, 4)
        scores = own @ blocks.seen(key).permute(0, 3, 1, 4, 2) + blocks.mask
        if first is None:
            probabilities = self._probabilities(scores)
            found = probabilities @ blocks.seen(value).permute(0, 3, 1, 2, 4)
        else:
            count = first.count
            to_first = own @ key[:, :count].permute(0, 2, 3, 1)[:, :, None] + _to_first(first, sight)
            probabilities = self._probabilities(torch.cat([to_first, scores], dim=-1))
            found = probabilities[..., count:] @ blocks.seen(value).permute(0, 3, 1, 2, 4)
            found = found + probabilities[..., :count] @ value[:, :count].transpose(1, 2)[:, :, None]
        rows, length = hidden_states.shape[:2]
        local = found.permute(0, 2, 3, 1, 4).reshape(rows, blocks.count * blocks.size, -1)[:, :length]
        return (local if first is None else self._with_global(local, hidden_states, first, sight),)

    def _with_global(self, local: Tensor, states: Tensor, first: FirstTokens, sight: Sight) -> Tensor:
        """Return what the windows gave, with that of global attention in the place of the first tokens."""
        query = self._by_head(self.query_global(states[:, : first.count]) / math.sqrt(self.head_dim)).transpose(1, 2)
        key, value = (self._by_head(layer(states)) for layer in (self.key_global, self.value_global))
        probabilities = self._probabilities(query @ key.permute(0, 2, 3, 1) + sight.padding)
        found = (probabilities @ value.transpose(1, 2)).transpose(1, 2).flatten(2)
        if first.which is None:
            return torch.where(_places(local)[None, :, None] == 0, found, local)
        found = torch.where(first.which[..., None], found, local[:, : first.count])
        return torch.cat([found, local[:, first.count :]], dim=1)

    def _by_head(self, states: Tensor) -> Tensor:
        return states.reshape(states.shape[0], states.shape[1], -1, self.head_dim)

    def _probabilities(self, scores: Tensor) -> Tensor:
        found = scores.softmax(dim=-1, dtype=torch.float32).type_as(scores)
        return F.dropout(found, p=self.dropout, training=self.training)


class BlockEncoder(LongformerEncoder):  # type: ignore[misc]
    """The layers, one after the other."""

    def forward(self, states: Tensor, sight: Sight, every: bool) -> tuple[Tensor, tuple[Tensor, ...] | None]:
        """Return the last states ``[B, L, d]``, and with ``every`` those before and after each layer."""
        kept = [states]
        for layer in self.layer:
            found = layer(states, attention_mask=sight)
            states = found[0] if isinstance(found, tuple) else found  # LayerDrop leaves out a layer, tuple and all
            kept.append(states)
        return states, tuple(kept) if every else None


class BlockModel(LongformerModel):  # type: ignore[misc]
    """The encoder.

    Attributes:
        global_tokens: Which tokens have global attention if nobody says it: the ``first``, the ``question`` or none.
    """

    global_tokens = ""

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **_rest: Any,
    ) -> LongformerBaseModelOutputWithPooling:
        """Run; see the standard class.

        Raises:
            ValueError: If attention maps are asked for, which blocks do not have, or if tokens with global attention
                do not stand at the beginning.
        """
        if output_attentions or self.config.output_attentions:
            raise ValueError("longformer by blocks has no attention maps; leave output_attentions out")
        states = self.embeddings(
            input_ids=input_ids,
            position_ids=position_ids,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
        )
        real = torch.ones_like(states[..., 0]) if attention_mask is None else attention_mask
        first = self._first(global_attention_mask, input_ids, real)
        halves = {layer.attention.self.one_sided_attn_window_size for layer in self.encoder.layer}
        every = bool(self.config.output_hidden_states if output_hidden_states is None else output_hidden_states)
        last, kept = self.encoder(states, _sight(real, first, sorted(halves), states.dtype), every)
        pooled = None if self.pooler is None else self.pooler(last)
        return LongformerBaseModelOutputWithPooling(last_hidden_state=last, pooler_output=pooled, hidden_states=kept)

    def _first(self, given: Tensor | None, input_ids: Tensor | None, real: Tensor) -> FirstTokens | None:
        said = given is None or _unreadable(real)
        if self.global_tokens == "first" and said:
            return FirstTokens(1, None)
        if given is None and self.global_tokens == "question":
            given = question_tokens(input_ids, self.config.sep_token_id)
        if given is None:
            return None
        which = (given != 0) & (real != 0)
        if real.is_meta:
            return FirstTokens(1, which[:, :1])
        longest = which.sum(dim=1).max()
        if _traced():
            return FirstTokens(longest, which[:, :longest])
        if bool((which[:, 1:] & ~which[:, :-1]).any()):
            raise ValueError("longformer by blocks has global attention at the beginning of a text alone")
        count = int(longest)
        return FirstTokens(count, which[:, :count]) if count else None


class _Blocked(nn.Module):
    """What a standard class is mixed with."""

    def __init__(self, config: Any, *given: Any, **settings: Any) -> None:
        super().__init__(config, *given, **settings)
        _turn(self)


class _SaysItself(nn.Module):
    """A head that leaves it to the encoder which tokens have global attention, where standard code reads tokens."""

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
        **inputs: Any,
    ) -> Any:
        """Run with the mask that the standard class would make; see there."""
        network: Any = self
        if global_attention_mask is None:
            if network.longformer.global_tokens == "question":
                global_attention_mask = question_tokens(input_ids, network.config.sep_token_id)
            else:
                like = inputs["inputs_embeds"][..., 0] if input_ids is None else input_ids
                global_attention_mask = (_places(like) == 0).long().expand(like.shape[0], -1)
        return super().forward(
            input_ids, attention_mask=attention_mask, global_attention_mask=global_attention_mask, **inputs
        )


def in_blocks(network: Any) -> Any:
    """Return a Longformer, changed in place, that computes by blocks; others stay as they are."""
    if any(type(module) is LongformerModel for module in network.modules()):
        standard: Any = type(network)
        network.__class__ = _blocked_class(standard)
        _turn(network)
    return network


def question_tokens(input_ids: Tensor | None, separator: int) -> Tensor:
    """Return 1 for the tokens before the first separator, ``[B, L]``: the question of a question and its context.

    Raises:
        ValueError: If there are no tokens to read, only their embeddings.
    """
    if input_ids is None:
        raise ValueError("which tokens are the question is read from input_ids; give them")
    return (input_ids == separator).long().cumsum(dim=1).eq(0).long()


@functools.cache
def _blocked_class(standard: Any) -> type:
    """Return the class that makes such networks; its name, which is written into a config, is that of the standard."""
    bases: tuple[type, ...] = (_Blocked, BlockModel if standard is LongformerModel else standard)
    if standard in _GLOBAL:
        bases = (_Blocked, _SaysItself, standard)
    return type(standard.__name__, bases, {"__module__": standard.__module__})


_GLOBAL = {LongformerForSequenceClassification: "first", LongformerForQuestionAnswering: "question"}
"""Standard class with a head -> which tokens it gives global attention."""
_INSTEAD: dict[Any, Any] = {
    LongformerSelfAttention: BlockAttention,
    LongformerEncoder: BlockEncoder,
    LongformerModel: BlockModel,
}


def _turn(network: nn.Module) -> None:
    for module in network.modules():
        module.__class__ = _INSTEAD.get(type(module), module.__class__)
    for standard, tokens in _GLOBAL.items():
        if isinstance(network, standard):
            network.longformer.global_tokens = tokens


def _sight(real: Tensor, first: FirstTokens | None, halves: Sequence[int], dtype: torch.dtype) -> Sight:
    """Return what tokens may see.

    Args:
        real: 1 for real tokens, ``[B, L]``.
        first: Those with global attention; windows leave them out, for they are seen anyway.
        halves: Half of each size of window that a layer has.
        dtype: Of the scores.
    """
    near = real.to(dtype)
    if first is not None and first.which is None:
        near = near * (_places(near) > 0).to(dtype)
    elif first is not None and first.which is not None:
        near = torch.cat([(~first.which).to(dtype) * near[:, : first.count], near[:, first.count :]], dim=1)
    windows = {half: _blocks(near, half) for half in halves}
    return Sight(windows, first, _hidden(real.to(dtype))[:, None, None])


def _blocks(near: Tensor, half: int) -> Blocks:
    size, length = near[:, :half].shape[1], near.shape[1]  # a slice, so that a traced graph takes any length
    count = (length + size - 1) // size
    blocks = Blocks(size, count, count * size - length, beside=_traced() or int(count) > 1)
    places = torch.arange(size, device=near.device)
    if blocks.beside:
        others = torch.arange(3 * size, device=near.device) - size
        close = ((others[None] - places[:, None]).abs() <= half).to(near.dtype)
    else:
        close = torch.ones_like(places, dtype=near.dtype)[:, None] + torch.zeros_like(places, dtype=near.dtype)
    allowed = blocks.seen(near[..., None])[..., 0][:, :, None] * close
    return replace(blocks, mask=_hidden(allowed)[:, None])


def _to_first(first: FirstTokens, sight: Sight) -> Tensor:
    """Return what is added to scores of first tokens, ``[B, 1, 1, 1, count]``."""
    own = sight.padding[..., : first.count] if first.which is None else _hidden(first.which.to(sight.padding.dtype))
    return own.reshape(own.shape[0], 1, 1, 1, -1)


def _hidden(shown: Tensor) -> Tensor:
    """Return what is added to the scores of what is shown (1) or hidden (0)."""
    return (1 - shown) * (torch.finfo(shown.dtype).min / 2)


def _places(tokens: Tensor) -> Tensor:
    return torch.arange(tokens.shape[1], device=tokens.device)


def _inner(tokens: Tensor) -> tuple[int, ...]:
    """Return no padding for the axes after that of tokens."""
    return (0,) * (2 * (tokens.ndim - 2))


def _traced() -> bool:
    tracing: bool = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    return tracing or torch.compiler.is_exporting()


def _unreadable(tensor: Tensor) -> bool:
    """Whether nobody can look at its numbers."""
    return tensor.is_meta or _traced()
