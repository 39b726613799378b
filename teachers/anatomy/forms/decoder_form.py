"""A decoder as the toolkit runs it: it keeps keys and values only if it is asked to, and its files are standard."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


class DecoderForm(nn.Module):
    """What a standard class is mixed with; a family with parts of another form says so in three methods."""

    get_input_embeddings: Any

    def __init__(self, config: Any, *given: Any, **settings: Any) -> None:
        super().__init__(config, *given, **settings)
        self.reform()

    def reform(self) -> None:
        """Put other parts in the places of those of the standard class, in place.

        Here it is only said that the vector of padding is trained: it often is that of the end of texts too.
        """
        table: Any = self.get_input_embeddings()
        table.padding_idx = None

    def standard_state(self, given: Mapping[str, Tensor] | None = None) -> Mapping[str, Tensor]:
        """Return the network's state, or what is given of it, under the names and shapes of the standard class."""
        return self.state_dict() if given is None else given

    def recorded_state(self, given: Mapping[str, Tensor] | None = None) -> Mapping[str, Tensor]:
        """Return the same as records know it: as it is here, unless its names are others than in files."""
        return self.state_dict() if given is None else given

    def __call__(self, *given: Any, **inputs: Any) -> Any:
        """Run the network.

        On the meta device mask and positions are made here, for standard code would look into its own.
        """
        inputs.setdefault("use_cache", False)
        ids = inputs.get("input_ids")
        if ids is not None and ids.is_meta and "attention_mask" not in inputs:
            rows, length = ids.shape
            inputs["attention_mask"] = torch.ones(rows, 1, length, length, dtype=torch.bool, device="meta").tril()
            inputs["position_ids"] = torch.arange(length, device="meta")[None]
        return super().__call__(*given, **inputs)

    def save_pretrained(self, save_directory: str | Path, **settings: Any) -> None:
        """Write the network as the standard class would."""
        super().save_pretrained(save_directory, state_dict=self.standard_state(), **settings)  # type: ignore[misc]


def in_decoder_form(network: Any, form: Any = DecoderForm) -> Any:
    """Return a standard decoder, changed in place, in a form (a ``DecoderForm``); one in a form already stays."""
    if not isinstance(network, DecoderForm):
        standard: Any = type(network)
        network.__class__ = _mixed(form, standard)
        network.reform()
    return network


@functools.cache
def _mixed(form: Any, standard: Any) -> type:
    """Return the class that makes such networks; its name, which is written into a config, is that of the standard."""
    return type(standard.__name__, (form, standard), {"__module__": standard.__module__})
