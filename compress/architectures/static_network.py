"""One fixed vector a token and their mean: a network without context, for the cheapest student there is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForSequenceClassification
from transformers.modeling_outputs import SequenceClassifierOutput

from compress.architectures.token_network import TextConfig, TextHead, TextNetwork, register_texts, words_of_texts
from teachers.anatomy.pooling import normalized
from teachers.sentence_folder import save_static_folder

TABLE = "embeddings"
"""Name of the table in the files of sentence-transformers and model2vec."""


class StaticConfig(TextConfig):
    """Config of a table of token vectors, with a head or without one.

    Args:
        text_tokens: Most tokens of a text, special tokens not counted, where there is no head.
        kwargs: The fields of ``TextConfig``.
    """

    model_type = "compress-static"

    # Without an own one, transformers would write one that knows no defaults.
    def __init__(self, text_tokens: int = 510, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.text_tokens = text_tokens


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


class StaticModel(TextNetwork):
    """The vector of a text, the mean of its tokens' vectors; sentence-transformers and model2vec open what is saved."""

    save_sentence_folder = staticmethod(save_static_folder)

    def __init__(self, config: StaticConfig) -> None:
        super().__init__(config)
        self.encoder = StaticVectors(config)
        self.post_init()

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> SequenceClassifierOutput:
        """Return vectors ``[B, E]``, in the place of logits."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        (words,) = words_of_texts(input_ids, mask, self.config)
        return SequenceClassifierOutput(logits=normalized(self.encoder(input_ids, words), self.config))

    def save_pretrained(self, folder: str | Path, **settings: Any) -> None:
        """Write config and table, under the name by which other libraries look for it."""
        super().save_pretrained(folder, state_dict={TABLE: self.encoder.words.weight.detach()}, **settings)

    @classmethod
    def from_pretrained(cls, *source: Any, **settings: Any) -> Any:
        """Load what ``save_pretrained`` wrote."""
        return super().from_pretrained(*source, key_mapping={f"^{TABLE}$": "encoder.words.weight"}, **settings)


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
    {AutoModel: StaticModel, AutoModelForSequenceClassification: StaticForSequenceClassification},
    hidden_size="embedding_size",
)
