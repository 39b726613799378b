"""One fixed vector a token and their mean: a network without context, for the cheapest student there is."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification
from transformers.modeling_outputs import SequenceClassifierOutput

from compress.architectures.texts import TextConfig, TextHead, TextNetwork, register, words_of_texts
from teachers.families import Family

MODEL_TYPE = "compress-static"


class StaticConfig(TextConfig):
    """Config of a table of token vectors with a head."""

    model_type = MODEL_TYPE


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
        mean: Tensor = (self.words(ids) * share[:, :, None]).sum(dim=1)
        return mean


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


register(
    StaticConfig,
    Family(
        MODEL_TYPE,
        "encoder",
        layers=None,
        config={"hidden_size": "embedding_size", "embedding_size": "embedding_size", "vocab_size": "vocab_size"},
        parts={},
        embeddings={"words": "words"},
        heads={"dense": "head.dense", "classifier": "head.classifier"},
        token_types="never",
        post_norm=False,
        predicts_words=False,
        plain_attention=False,
    ),
    {AutoModelForSequenceClassification: StaticForSequenceClassification},
)
