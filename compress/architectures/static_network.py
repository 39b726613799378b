"""One fixed vector a token and their mean: a network without context, for the cheapest student there is."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification
from transformers.modeling_outputs import SequenceClassifierOutput

from compress.architectures.token_network import TextConfig, TextHead, TextNetwork, register_texts, words_of_texts


class StaticConfig(TextConfig):
    """Config of a table of token vectors with a head.

    Args:
        kwargs: The fields of ``TextConfig``.
    """

    model_type = "compress-static"

    # Without an own one, transformers would write one that knows no defaults.
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)


class StaticVectors(nn.Module):
    """A table whose rows are averaged.

    Args:
        config: Sizes.
    """

    def __init__(self, config: StaticConfig) -> None:
        super().__init__()
        self.words = nn.Embedding(config.vocab_size, config.embedding_size, padding_idx=config.pad_token_id)

    def forward(self, ids: Tensor, chosen: Tensor) -> Tensor:
        """Return the mean vector ``[B, E]`` of the chosen tokens; 0 for a row without any.

        Args:
            ids: Token ids ``[B, L]``.
            chosen: Boolean ``[B, L]``.
        """
        share = chosen.to(self.words.weight.dtype)
        share = share / share.sum(dim=1, keepdim=True).clamp(min=1)
        return torch.bmm(share[:, None], self.words(ids))[:, 0]


class StaticForSequenceClassification(TextNetwork):
    """Classes, or a score, of a text or a pair of texts."""

    def __init__(self, config: StaticConfig) -> None:
        super().__init__(config)
        self.encoder = StaticVectors(config)
        self.head = TextHead(config.embedding_size, config)
        self.post_init()

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> SequenceClassifierOutput:
        """Return logits ``[B, C]``."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        texts = [self.encoder(input_ids, chosen) for chosen in words_of_texts(input_ids, mask, self.config)]
        return SequenceClassifierOutput(logits=self.head(*texts))


register_texts(
    StaticConfig,
    {AutoModelForSequenceClassification: StaticForSequenceClassification},
    hidden_size="embedding_size",
)
