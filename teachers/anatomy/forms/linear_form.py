"""GPT-2 with ordinary linear layers: where standard code has ``Conv1D``, with turned matrices, here is ``nn.Linear``.

So whatever reads, cuts, factorises or rounds a linear layer works on GPT-2 too. The numbers are the same, and
``save_pretrained`` turns them back: a saved folder is a standard one. ``xlnet_form`` does the same for XLNet,
``neox_form`` for GPT-NeoX, and ``longformer_form`` lets Longformer compute by blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from teachers.anatomy.families import FAMILIES
from teachers.anatomy.forms.decoder_form import DecoderForm, in_decoder_form
from teachers.anatomy.parts import replace_parts

TURNED = ("c_attn", "c_proj", "c_fc", "q_attn")
"""Last words of the paths of modules that standard code has as ``Conv1D``."""


class _LinearForm(DecoderForm):
    """What standard GPT-2 is mixed with: made with linear layers, saved without."""

    def reform(self) -> None:
        """Turn the matrices, in place."""
        super().reform()
        replace_parts(self, lambda module: _linear(module) if isinstance(module, Conv1D) else None)

    def standard_state(self, given: Mapping[str, Tensor] | None = None) -> Mapping[str, Tensor]:
        """Return the state with the matrices turned back."""
        turned = {f"{path}.weight" for path, _ in _turned(self)}
        return {
            name: tensor.t().contiguous() if name in turned else tensor
            for name, tensor in super().standard_state(given).items()
        }


def in_linear_form(network: Any) -> Any:
    """Return a network, changed in place, in the form that the toolkit works on; most families stay as they are."""
    model_type = getattr(network.config, "model_type", "")
    if model_type == "xlnet":
        from teachers.anatomy.forms.xlnet_form import in_linear_xlnet

        return in_linear_xlnet(network)
    if model_type == "longformer":
        from teachers.anatomy.forms.longformer_form import in_blocks

        return in_blocks(network)
    if model_type == "gpt_neox":
        from teachers.anatomy.forms.neox_form import NeoXForm

        return in_decoder_form(network, NeoXForm)
    if model_type == "gpt2":
        return in_decoder_form(network, _LinearForm)
    causal = model_type in FAMILIES and FAMILIES.get(model_type).causal
    return in_decoder_form(network) if causal else network


def recorded_state(network: nn.Module, given: Mapping[str, Tensor] | None = None) -> Mapping[str, Tensor]:
    """Return the state of a network as records know it: of XLNet and GPT-NeoX under the names of the standard class.

    Args:
        network: The network.
        given: Its tensors, or some of them; by default its state.
    """
    if any(type(module).__name__ == "LinearRelativeAttention" for module in network.modules()):
        from teachers.anatomy.forms.xlnet_form import standard_state

        return standard_state(network, given)
    if isinstance(network, DecoderForm):
        return network.recorded_state(given)
    return network.state_dict() if given is None else given


@dataclass(frozen=True)
class LinearAuto:
    """An Auto class of transformers whose networks come in linear form.

    Attributes:
        auto: The Auto class.
    """

    auto: Any

    def from_config(self, config: Any) -> Any:
        """Return a network with random weights."""
        return in_linear_form(self.auto.from_config(config))

    def from_pretrained(self, *given: Any, **settings: Any) -> Any:
        """Return a network with the weights of a folder or hub name, and what was told of them if that was asked."""
        found = self.auto.from_pretrained(*given, **settings)
        return (in_linear_form(found[0]), *found[1:]) if isinstance(found, tuple) else in_linear_form(found)


def _linear(old: Conv1D) -> nn.Linear:
    inputs, outputs = old.weight.shape
    with torch.device("meta"):
        new = nn.Linear(inputs, outputs)
    new.weight = nn.Parameter(old.weight.detach().t().contiguous(), requires_grad=old.weight.requires_grad)
    new.bias = nn.Parameter(old.bias.detach(), requires_grad=old.bias.requires_grad)
    return new.train(old.training)


def _turned(network: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    for path, module in network.named_modules():
        if type(module) is nn.Linear and path.rpartition(".")[2] in TURNED:
            yield path, module
