"""The head that predicts words by itself, at chosen places: for masked words a fifth of the work of the sequence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from teachers.anatomy.encoder import base_encoder, family_of


class _Given(nn.Module):
    """Stands in the encoder's place and answers with states that are known already."""

    def __init__(self, states: Tensor) -> None:
        super().__init__()
        self.states = states

    def forward(self, *_args: Any, **_inputs: Any) -> BaseModelOutput:
        return BaseModelOutput(last_hidden_state=self.states)


def word_scores(network: Any, states: Tensor) -> Tensor:
    """Return the scores ``[N, V]`` of a ``…ForMaskedLM`` or ``…ForCausalLM`` network for last states ``[N, d]``."""
    if not family_of(network).predicts_words:  # its head is the output layer alone
        found: Tensor = network.get_output_embeddings()(states)
        return found
    name = family_of(network).base
    encoder = network._modules[name]
    network._modules[name] = _Given(states[None])
    try:
        ids = torch.zeros(1, len(states), dtype=torch.int64, device=states.device)
        scores: Tensor = network(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]
    finally:
        network._modules[name] = encoder
    return scores


def head_modules(network: Any) -> nn.ModuleList:
    """Return what lies outside of the encoder."""
    encoder = base_encoder(network)
    return nn.ModuleList(child for child in network.children() if child is not encoder)
