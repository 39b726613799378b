"""What an encoder makes of a part of a text: its layers run under a mask, so a state has seen that part and no more."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from teachers.anatomy.encoder import base_encoder, family_of, is_causal, mixes_neighbours
from teachers.anatomy.parts import layer_output, rerouted

WordView = Literal["forward", "backward", "future", "past"]
TextView = Literal["first_half", "second_half"]
Mask = Literal["forward", "backward", "halves"]

MASK_OF: dict[WordView | TextView, Mask] = {
    "forward": "forward",
    "backward": "backward",
    "future": "forward",
    "past": "backward",
    "first_half": "halves",
    "second_half": "halves",
}
"""View -> the mask under which its states are computed."""
OF_WORDS: tuple[WordView, ...] = ("forward", "backward", "future", "past")
OF_TEXTS: tuple[TextView, ...] = ("first_half", "second_half")


def unrestricted(network: Any) -> str:
    """Return why tokens cannot be hidden from the layers of a network; nothing if they can."""
    name = family_of(network).model_type
    if is_causal(network):
        return f"{name} sees the tokens before a token alone, so it has no view of the whole to learn from"
    if family_of(network).global_parts:
        return f"{name} reads windows, which take no mask for each token"
    if family_of(network).time_first:
        return f"{name} takes masks of a form of its own"
    convolved: int = getattr(base_encoder(network).config, "conv_kernel_size", 0)
    if mixes_neighbours(network.config) or convolved:
        return f"this {name} mixes neighbouring tokens outside of its attention, where no mask hides them"
    return ""


def halves(mask: Tensor) -> Tensor:
    """Return 0 for tokens of the first half of a text, 1 for those of the second and -1 for padding, ``[B, L]``.

    Args:
        mask: 1 for real tokens, ``[B, L]``; of an odd number of tokens the first half has one more.
    """
    second = mask.cumsum(dim=1) * 2 > mask.sum(dim=1, keepdim=True) + 1
    return second.long().masked_fill(mask == 0, -1)


def seen(kind: Mask, mask: Tensor) -> Tensor:
    """Return which token (last axis) each token may see, boolean ``[B, L, L]``: always itself, never padding.

    Args:
        kind: ``forward`` (itself and those before), ``backward`` (itself and those after) or ``halves`` (its own half).
        mask: 1 for real tokens, ``[B, L]``.
    """
    places = torch.arange(mask.shape[1], device=mask.device)
    if kind == "halves":
        own = halves(mask)
        allowed = own[:, :, None] == own[:, None, :]
    else:
        earlier = places[None, :] <= places[:, None]
        allowed = (earlier if kind == "forward" else earlier.T).expand(len(mask), -1, -1)
    return (allowed & mask.bool()[:, None, :]) | (places[None, :] == places[:, None])


def restricted_states(network: Any, inputs: dict[str, Tensor], kinds: tuple[Mask, ...], depth: int) -> list[Tensor]:
    """Return the encoder's output for each kind of mask, ``[B, L, d]``, computed in one pass.

    Args:
        network: A model with or without a head that ``unrestricted`` finds nothing wrong with.
        inputs: Its inputs, ``[B, L]`` each.
        kinds: The masks.
        depth: How many layers run; the others pass on what they get.
    """
    allowed = torch.cat([seen(kind, inputs["attention_mask"]) for kind in kinds])[:, None]
    repeated = {name: tensor.repeat(len(kinds), 1) for name, tensor in inputs.items()}

    def route(index: int, own: Any, hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        if index >= depth:
            return layer_output(network, hidden)
        if "attention_mask" in kwargs:
            kwargs["attention_mask"] = _both(kwargs["attention_mask"], allowed, network, hidden.dtype)
        else:
            args = (_both(args[0], allowed, network, hidden.dtype), *args[1:])
        return own(hidden, *args, **kwargs)

    with rerouted(network, route):
        states: Tensor = base_encoder(network)(**repeated).last_hidden_state
    return list(states.chunk(len(kinds)))


def _both(own: Tensor | None, allowed: Tensor, network: Any, dtype: torch.dtype) -> Tensor:
    """Return a mask of a layer that hides what is not allowed too, in the form that the layer takes."""
    if own is None:  # the layers were given no mask, as nothing is padding
        if base_encoder(network).config._attn_implementation == "sdpa":
            return allowed
        own = torch.zeros((), dtype=dtype, device=allowed.device)
    if own.dtype == torch.bool:
        return own & allowed
    if own.is_floating_point():
        return torch.where(allowed, own, torch.finfo(own.dtype).min)
    return own * allowed


def word_places(view: WordView, words: Tensor, mask: Tensor) -> Tensor:
    """Return for each word the token whose restricted state a view reads, ``[B, L]``; -1 where there is none.

    ``forward`` reads the last token of the word and ``backward`` its first one, so both have seen the whole word;
    ``future`` reads the token before the word and ``past`` the one after it, so neither has seen any of it.

    Args:
        view: Which.
        words: Whether the first token of a word stands there, ``[B, L]``; places elsewhere mean nothing.
        mask: 1 for real tokens, ``[B, L]``, those of padding last.
    """
    places = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
    if view == "backward":
        return places
    if view == "future":
        return places - 1
    last = (places * mask).amax(dim=1, keepdim=True)
    starts = torch.where(words.bool(), places, last)
    later = torch.cat([starts[:, 1:], last], dim=1).flip(1).cummin(dim=1).values.flip(1)
    if view == "forward":
        return torch.maximum(later - 1, places)
    return torch.where(later > places, later, -1)


def read(states: Tensor, places: Tensor) -> Tensor:
    """Return the states ``[B, L, d]`` of these places ``[B, L]``; 0 for a place of -1."""
    found = states.gather(1, places.clamp(min=0)[..., None].expand(-1, -1, states.shape[-1]))
    return found.masked_fill((places < 0)[..., None], 0)


def half_mean(view: TextView, states: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of the states of a half of each text, ``[B, d]``; 0 for a half without a token."""
    weights = (halves(mask) == OF_TEXTS.index(view)).to(states.dtype)[..., None]
    return (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)
