"""GPT-2 with ordinary linear layers: where standard code has ``Conv1D``, with turned matrices, here is ``nn.Linear``.

So whatever reads, cuts, factorises or rounds a linear layer works on GPT-2 too. The numbers are the same, and
``save_pretrained`` turns them back: a saved folder is a standard one. ``xlnet_form`` does the same for XLNet, and
``longformer_form`` lets Longformer compute by blocks.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from teachers.anatomy.parts import replace_parts

TURNED = ("c_attn", "c_proj", "c_fc", "q_attn")
"""Last words of the paths of modules that standard code has as ``Conv1D``."""


class _LinearForm(nn.Module):
    """What a standard class is mixed with: made with linear layers, saved without."""

    def __init__(self, config: Any, *given: Any, **settings: Any) -> None:
        super().__init__(config, *given, **settings)
        _turn(self)

    def __call__(self, *given: Any, **inputs: Any) -> Any:
        """Run the network, which keeps no keys and values unless it is asked to.

        On the meta device the mask is made here, for standard code would look into its own.
        """
        inputs.setdefault("use_cache", False)
        ids = inputs.get("input_ids")
        if ids is not None and ids.is_meta and "attention_mask" not in inputs:
            rows, length = ids.shape
            inputs["attention_mask"] = torch.ones(rows, 1, length, length, dtype=torch.bool, device="meta").tril()
        return super().__call__(*given, **inputs)

    def save_pretrained(self, save_directory: str | Path, **settings: Any) -> None:
        """Write the network as the standard class would."""
        turned = {f"{path}.weight" for path, _ in _turned(self)}
        state: dict[str, Tensor] = {
            name: tensor.t().contiguous() if name in turned else tensor for name, tensor in self.state_dict().items()
        }
        super().save_pretrained(save_directory, state_dict=state, **settings)  # type: ignore[misc]


def in_linear_form(network: Any) -> Any:
    """Return a network, changed in place, in the form that the toolkit works on; most families stay as they are."""
    model_type = getattr(network.config, "model_type", "")
    if model_type == "xlnet":
        from teachers.anatomy.xlnet_form import in_linear_xlnet

        return in_linear_xlnet(network)
    if model_type == "longformer":
        from teachers.anatomy.longformer_form import in_blocks

        return in_blocks(network)
    if any(isinstance(module, Conv1D) for module in network.modules()):
        standard: Any = type(network)
        network.__class__ = _linear_class(standard)
        _turn(network)
    return network


def recorded_state(network: nn.Module, given: Mapping[str, Tensor] | None = None) -> Mapping[str, Tensor]:
    """Return the state of a network as records know it: that of XLNet under the names of the standard class.

    Args:
        network: The network.
        given: Its tensors, or some of them; by default its state.
    """
    if any(type(module).__name__ == "LinearRelativeAttention" for module in network.modules()):
        from teachers.anatomy.xlnet_form import standard_state

        return standard_state(network, given)
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


@functools.cache
def _linear_class(standard: Any) -> type:
    """Return the class that makes such networks; its name, which is written into a config, is that of the standard."""
    return type(standard.__name__, (_LinearForm, standard), {"__module__": standard.__module__})


def _turn(network: Any) -> None:
    replace_parts(network, lambda module: _linear(module) if isinstance(module, Conv1D) else None)


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
