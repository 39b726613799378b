"""XLNet with ordinary linear layers: where standard code has bare tensors by head, here are ``nn.Linear``.

So whatever reads, factorises or rounds a linear layer works on XLNet too. The numbers are the same, and
``save_pretrained`` turns them back: a saved folder is a standard one. Biases by head stay the tensors they are.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.xlnet.modeling_xlnet import XLNetModel, XLNetRelativeAttention

TURNED = ("q", "k", "v", "o", "r")
"""Tensors ``[hidden, heads, channels]`` of an attention that are linear layers here; ``o`` leads back."""


class LinearRelativeAttention(XLNetRelativeAttention):  # type: ignore[misc]
    """XLNet's attention with a linear layer for each of ``TURNED``; what it computes is that of the standard class.

    Networks get it by ``in_linear_xlnet``; made by itself it may have fewer heads than a config would give it.

    Args:
        heads: Attention heads.
        head_size: Channels of a head.
        hidden_size: Channels of the residual stream.
        dropout: Of attention probabilities and of what is given.
        eps: Of the layer norm.
    """

    def __init__(self, heads: int, head_size: int, hidden_size: int, dropout: float, eps: float) -> None:
        nn.Module.__init__(self)
        self.n_head, self.d_head, self.d_model = heads, head_size, hidden_size
        self.scale = 1 / head_size**0.5
        self.q, self.k, self.v, self.r = (nn.Linear(hidden_size, heads * head_size, bias=False) for _ in range(4))
        self.o = nn.Linear(heads * head_size, hidden_size, bias=False)
        self.r_r_bias, self.r_s_bias, self.r_w_bias = (nn.Parameter(torch.zeros(heads, head_size)) for _ in range(3))
        self.seg_embed = nn.Parameter(torch.zeros(2, heads, head_size))
        self.layer_norm = nn.LayerNorm(hidden_size, eps=eps)
        self.dropout = nn.Dropout(dropout)

    def describe(self) -> dict[str, Any]:
        """Return the arguments of the class."""
        sizes = {"heads": self.n_head, "head_size": self.d_head, "hidden_size": self.d_model}
        return {**sizes, "dropout": self.dropout.p, "eps": self.layer_norm.eps}

    def forward(
        self,
        h: Tensor,
        g: Tensor | None,
        attn_mask_h: Tensor | None,
        attn_mask_g: Tensor | None,
        r: Tensor,
        seg_mat: Tensor | None,
        mems: Tensor | None = None,
        target_mapping: Tensor | None = None,
        output_attentions: bool = False,
    ) -> tuple[Any, ...]:
        """Attend with the content stream ``h``, ``[L, B, d]``, and if there is one with the query stream ``g``.

        Args:
            h: Content of each token.
            g: Query of each token or target, ``[M, B, d]``.
            attn_mask_h: 1 where the content may not see, ``[L, keys, B, 1]``.
            attn_mask_g: The same for queries.
            r: Encodings of distances.
            seg_mat: Whether two tokens are of one segment.
            mems: Hidden states before these, ``[memory, B, d]``.
            target_mapping: Place of each query, ``[M, L, B]``; None where every token has one.
            output_attentions: Whether to return probabilities.
        """
        seen = h if mems is None or mems.dim() < 2 else torch.cat([mems, h], dim=0)
        query = self._by_head(self.q, h)
        given = (self._by_head(self.k, seen), self._by_head(self.v, seen), self._by_head(self.r, r.type(h.dtype)))
        shared = {"seg_mat": seg_mat, "output_attentions": output_attentions}
        found_h = self.rel_attn_core(query, *given, attn_mask=attn_mask_h, **shared)
        vectors, probabilities = found_h if output_attentions else (found_h, None)
        content = self.post_attention(h, vectors)
        if g is None:
            return (content, None, probabilities) if output_attentions else (content, None)
        query = self._by_head(self.q, g)
        if target_mapping is not None:
            query = torch.einsum("mbnd,mlb->lbnd", query, target_mapping)
        found_g = self.rel_attn_core(query, *given, attn_mask=attn_mask_g, **shared)
        vectors, more = found_g if output_attentions else (found_g, None)
        if target_mapping is not None:
            vectors = torch.einsum("lbnd,mlb->mbnd", vectors, target_mapping)
        answer = self.post_attention(g, vectors)
        return (content, answer, (probabilities, more)) if output_attentions else (content, answer)

    def post_attention(self, h: Tensor, attn_vec: Tensor, residual: bool = True) -> Tensor:
        """Return ``[L, B, d]`` after the output layer, dropout, the residual sum and the norm."""
        vectors = attn_vec.reshape(attn_vec.shape[0], attn_vec.shape[1], self.n_head * self.d_head)
        out = self.dropout(self.o(vectors))
        normed: Tensor = self.layer_norm(out + h if residual else out)
        return normed

    def _by_head(self, layer: nn.Module, states: Tensor) -> Tensor:
        found: Tensor = layer(states)  # its sizes are read one by one, so that a traced graph takes any
        return found.view(found.shape[0], found.shape[1], self.n_head, self.d_head)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Take the tensors of a standard network too."""
        for name in TURNED:
            if (old := state_dict.pop(prefix + name, None)) is not None:
                state_dict[f"{prefix}{name}.weight"] = _matrix(old, name)
        super()._load_from_state_dict(state_dict, prefix, *rest)


class CausalXLNet(XLNetModel):  # type: ignore[misc]
    """The encoder with ``attn_type: uni``, which here takes padding masks of several texts as well.

    Standard code adds a mask ``[L, L, B, 1]`` into one of ``[L, L, 1, 1]``, which is an error for more than one text.
    Its attribute ``attn_type`` is ``bi``, for the causal mask is a ``perm_mask`` here; that of the config stays.
    """

    def forward(self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, **inputs: Any) -> Any:
        """Run with a mask that hides every later token; see the standard class."""
        given = inputs["inputs_embeds"] if input_ids is None else input_ids
        rows, length = given.shape[:2]
        later = torch.ones(length, length, device=given.device, dtype=self.dtype).triu(1)
        inputs["perm_mask"] = later[None].expand(rows, -1, -1)
        return super().forward(input_ids, attention_mask=attention_mask, **inputs)


class _LinearXLNet(nn.Module):
    """What a standard class is mixed with: made with linear layers, saved without."""

    def __init__(self, config: Any, *given: Any, **settings: Any) -> None:
        super().__init__(config, *given, **settings)
        _turn(self)

    def save_pretrained(self, save_directory: str | Path, **settings: Any) -> None:
        """Write the network as the standard class would."""
        state = standard_state(self)
        # what is asked for also where a library has quantized the network
        self.state_dict = lambda **_: dict(state)  # type: ignore[method-assign, assignment]
        try:
            super().save_pretrained(save_directory, **settings)  # type: ignore[misc]
        finally:
            del self.state_dict


def in_linear_xlnet(network: Any) -> Any:
    """Return an XLNet, changed in place, whose attention is made of linear layers; others stay as they are."""
    if any(type(module) is XLNetRelativeAttention for module in network.modules()):
        standard: Any = type(network)
        network.__class__ = _linear_class(standard, network.config.attn_type == "uni")
        _turn(network)
    return network


def standard_state(network: nn.Module, given: Mapping[str, Tensor] | None = None) -> Mapping[str, Tensor]:
    """Return the state of a network, or what is given of it, under the names and shapes of the standard class."""
    state = dict(network.state_dict() if given is None else given)
    for path, module in _attentions(network):
        prefix = f"{path}." if path else ""
        for name in TURNED:
            if type(getattr(module, name)) is nn.Linear:
                weight = state.pop(f"{prefix}{name}.weight")
                matrix = weight if name == "o" else weight.t()
                state[prefix + name] = matrix.reshape(-1, module.n_head, module.d_head).contiguous()
    return state


def in_linear_state(network: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a state under the names of a network in linear form, whichever form it was saved from."""
    found = dict(state)
    for path, _ in _attentions(network):
        for name in TURNED:
            if f"{path}.{name}" in found:
                found[f"{path}.{name}.weight"] = _matrix(found.pop(f"{path}.{name}"), name)
    return found


@functools.cache
def _linear_class(standard: Any, causal: bool) -> type:
    """Return the class that makes such networks; its name, which is written into a config, is that of the standard."""
    bases = (_LinearXLNet, CausalXLNet if causal and standard is XLNetModel else standard)
    return type(standard.__name__, bases, {"__module__": standard.__module__})


def _turn(network: nn.Module) -> None:
    for _, module in _attentions(network):
        if type(module) is XLNetRelativeAttention:
            module.__class__ = LinearRelativeAttention
            for name in TURNED:
                _linear(module, name)
    for module in network.modules():
        if isinstance(module, XLNetModel) and module.attn_type == "uni":
            module.attn_type = "bi"
            module.__class__ = CausalXLNet if type(module) is XLNetModel else module.__class__


def _attentions(network: nn.Module) -> Iterator[tuple[str, Any]]:
    for path, module in network.named_modules():
        if isinstance(module, XLNetRelativeAttention):
            yield path, module


def _linear(attention: Any, name: str) -> None:
    old = attention._parameters.pop(name)
    matrix = _matrix(old.detach(), name)
    with torch.device("meta"):
        new = nn.Linear(matrix.shape[1], matrix.shape[0], bias=False)
    new.weight = nn.Parameter(matrix, requires_grad=old.requires_grad)
    setattr(attention, name, new.train(attention.training))


def _matrix(tensor: Tensor, name: str) -> Tensor:
    """Return a tensor ``[hidden, heads, channels]`` as the weight of a linear layer."""
    return tensor.flatten(1).contiguous() if name == "o" else tensor.flatten(1).t().contiguous()
