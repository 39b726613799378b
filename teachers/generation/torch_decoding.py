"""A network in torch that writes many texts at once: it reads each source once, and keeps keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from eval.encoding import Array


class TorchDecoding:
    """Texts that a network writes; see ``eval.generation.beam_search.Decoding``.

    Args:
        network: One with an encoder and a decoder, in evaluation mode.
        sources: What its encoder reads, ``[rows, length]`` by name.
    """

    def __init__(self, network: Any, sources: Mapping[str, Tensor]) -> None:
        self.network, self.mask = network, sources["attention_mask"]
        self.states: Tensor = network.get_encoder()(**sources).last_hidden_state
        self.cache = EncoderDecoderCache(DynamicCache(), DynamicCache())

    @property
    def rows(self) -> int:
        """How many texts are being written."""
        return len(self.mask)

    def step(self, ids: Array) -> Array:
        """Return the scores ``[rows, V]`` of the token after the newest of each row."""
        scores: Array = self._scores(ids).cpu().numpy()
        return scores

    def best(self, ids: Array, most: int) -> tuple[Array, Array]:
        """Return the likeliest of these tokens; they are found where the network is, since few of them are wanted."""
        scores = self._scores(ids)
        found, tokens = scores.topk(min(most, scores.shape[-1]))
        tokens, order = tokens.sort(dim=-1)
        found = found.gather(-1, order).double() - scores.logsumexp(dim=-1, keepdim=True).double()
        return tokens.cpu().numpy(), found.cpu().numpy()

    def _scores(self, ids: Array) -> Tensor:
        found = self.network(
            decoder_input_ids=torch.from_numpy(ids).to(self.mask.device)[:, None],
            encoder_outputs=BaseModelOutput(last_hidden_state=self.states),
            attention_mask=self.mask,
            cache=self.cache,
            use_cache=True,
        )
        scores: Tensor = found.logits[:, -1].float()
        return scores

    def keep(self, rows: Array) -> None:
        """Go on with these rows."""
        chosen = torch.from_numpy(rows).to(self.mask.device)
        self.mask, self.states = self.mask[chosen], self.states[chosen]
        if self.cache.get_seq_length():
            self.cache.reorder_cache(chosen)
