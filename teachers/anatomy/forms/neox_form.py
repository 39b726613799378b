"""GPT-NeoX with queries, keys and values apart: standard code has one matrix, which holds them head by head.

So whatever reads, cuts, factorises or rounds a linear layer finds them as in other families. The numbers are the same,
and ``save_pretrained`` joins them again: a saved folder is a standard one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXAttention

from teachers.anatomy.forms.decoder_form import DecoderForm

JOINED = "query_key_value"
"""The matrix of the standard class."""
APART = ("query", "key", "value")
"""What it is made of, in its order within a head."""


class SeparateAttention(GPTNeoXAttention):  # type: ignore[misc]
    """GPT-NeoX's attention with a linear layer for each of ``APART``; what it computes is that of the standard class.

    Networks get it by ``NeoXForm``.
    """

    def query_key_value(self, hidden: Tensor) -> Tensor:
        """Return queries, keys and values ``[B, L, heads · 3 · head size]``, head by head, as in standard code."""
        apart = [getattr(self, name)(hidden).unflatten(-1, (-1, self.head_size)) for name in APART]
        return torch.cat(apart, dim=-1).flatten(-2)


class NeoXForm(DecoderForm):
    """What standard GPT-NeoX is mixed with: made with three matrices, saved with one."""

    def reform(self) -> None:
        """Take the matrices apart, in place; those that bitsandbytes packed stay."""
        super().reform()
        modules: list[Any] = [*self.modules()]
        for module in modules:
            if type(module) is GPTNeoXAttention and type(old := module.query_key_value) is nn.Linear:
                del module.query_key_value
                module.__class__ = SeparateAttention
                for name, new in zip(APART, _apart(old, module.head_size), strict=True):
                    setattr(module, name, new)

    def standard_state(self, given: Mapping[str, Tensor] | None = None) -> Mapping[str, Tensor]:
        """Return the state with the matrices joined, those that an attention still has all three of."""
        state = dict(super().standard_state(given))
        for path, attention in _attentions(self):
            if all(type(getattr(attention, name)) is nn.Linear for name in APART):
                for kind in ("weight", "bias") if attention.query.bias is not None else ("weight",):
                    parts = [state.pop(f"{path}.{name}.{kind}") for name in APART]
                    blocks = [part.reshape(-1, attention.head_size, *part.shape[1:]) for part in parts]
                    state[f"{path}.{JOINED}.{kind}"] = torch.stack(blocks, dim=1).flatten(0, 2)
        return state

    recorded_state = standard_state


def _attentions(network: nn.Module) -> Iterator[tuple[str, Any]]:
    for path, module in network.named_modules():
        if isinstance(module, SeparateAttention):
            yield path, module


def _apart(old: nn.Linear, size: int) -> list[nn.Linear]:
    """Return the layers of queries, keys and values that one layer holds."""
    made = []
    for place in range(len(APART)):
        with torch.device("meta"):
            new = nn.Linear(old.in_features, old.out_features // len(APART), old.bias is not None)
        for kind, tensor in old.named_parameters():
            rows = tensor.detach().reshape(-1, len(APART), size, *tensor.shape[1:])[:, place].flatten(0, 1)
            setattr(new, kind, nn.Parameter(rows.contiguous().clone(), requires_grad=tensor.requires_grad))
        made.append(new.train(old.training))
    return made
