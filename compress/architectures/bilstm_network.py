"""A bidirectional LSTM of one layer over word vectors, with a head for texts, pairs of texts, or tokens.

It computes without packed sequences, so that it can be traced: the words of a text are moved to the left, the backward
direction reads them in reverse order, and both are read where the text ends. No state depends on what comes after, so
neither padding nor other rows change a result.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification
from transformers.modeling_outputs import SequenceClassifierOutput, TokenClassifierOutput

from compress.architectures.token_network import TextConfig, TextHead, TextNetwork, register_texts, words_of_texts


class BiLstmConfig(TextConfig):
    """Config of a BiLSTM.

    Args:
        hidden_size: Channels of each direction.
        kwargs: The fields of ``TextConfig``.
    """

    model_type = "compress-bilstm"

    def __init__(self, hidden_size: int = 150, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.hidden_size = hidden_size


class BiLstm(nn.Module):
    """Word vectors and an LSTM for each direction.

    Args:
        config: Sizes.
    """

    def __init__(self, config: BiLstmConfig) -> None:
        super().__init__()
        self.words = nn.Embedding(config.vocab_size, config.embedding_size, padding_idx=config.pad_token_id)
        self.ahead = nn.LSTM(config.embedding_size, config.hidden_size, batch_first=True)
        self.back = nn.LSTM(config.embedding_size, config.hidden_size, batch_first=True)

    def forward(self, ids: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Read the chosen tokens of every row.

        Args:
            ids: Token ids ``[B, L]``.
            chosen: Which of them are read, boolean ``[B, L]``; a row without any is read as one token of padding.

        Returns:
            The vector of the text ``[B, 2h]``, the last states of both directions; and the states at every token
            ``[B, L, 2h]``, without meaning where none was chosen.
        """
        aligned, places = align_left(ids, chosen, int(self.words.padding_idx or 0))
        last = (chosen.long().sum(dim=1, keepdim=True) - 1).clamp(min=0)
        mirrored = (last - torch.arange(ids.shape[1], device=ids.device)).clamp(min=0)
        words = self.words(torch.stack([aligned, aligned.gather(1, mirrored)]))
        with torch.autocast(words.device.type, enabled=False):  # not every processor has an LSTM in bf16
            ahead, back = self.ahead(words[0].float())[0], self.back(words[1].float())[0]
        text = torch.cat([at(ahead, last), at(back, last)], dim=-1)[:, 0]
        return text, at(torch.cat([ahead, at(back, mirrored)], dim=-1), places)


def align_left(ids: Tensor, chosen: Tensor, fill: int) -> tuple[Tensor, Tensor]:
    """Move the chosen tokens of each row to its left end, in order.

    Args:
        ids: Token ids ``[B, L]``.
        chosen: Boolean ``[B, L]``.
        fill: The id that takes the free places.

    Returns:
        The new ids ``[B, L]``, and the place of every old token among them, 0 for those not chosen.
    """
    length = ids.shape[1]
    places = chosen.long().cumsum(dim=1) - 1
    free = ids.new_full((ids.shape[0], length + 1), fill)
    # All that was not chosen is written into one place too many, which is cut off.
    moved = free.scatter(1, torch.where(chosen, places, length), ids)
    return moved[:, :length], torch.where(chosen, places, 0)


def at(states: Tensor, places: Tensor) -> Tensor:
    """Return states ``[B, L, d]`` at places ``[B, n]`` as ``[B, n, d]``."""
    return states.gather(1, places[:, :, None].expand(-1, -1, states.shape[2]))


class BiLstmForSequenceClassification(TextNetwork):
    """Classes, or a score, of a text or a pair of texts; both texts of a pair are read by the same LSTM."""

    def __init__(self, config: BiLstmConfig) -> None:
        super().__init__(config)
        self.encoder = BiLstm(config)
        self.head = TextHead(2 * config.hidden_size, config)
        self.post_init()

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> SequenceClassifierOutput:
        """Return logits ``[B, C]``."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        chosen = words_of_texts(input_ids, mask, self.config)
        ids = torch.cat([input_ids] * len(chosen))
        vectors, _ = self.encoder(ids, torch.cat(chosen))
        texts = vectors.reshape(len(chosen), -1, vectors.shape[1])
        return SequenceClassifierOutput(logits=self.head(*(texts[i] for i in range(len(chosen)))))


class BiLstmForTokenClassification(TextNetwork):
    """A tag of every token."""

    def __init__(self, config: BiLstmConfig) -> None:
        super().__init__(config)
        self.encoder = BiLstm(config)
        self.head = TextHead(2 * config.hidden_size, config)
        self.post_init()

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> TokenClassifierOutput:
        """Return logits ``[B, L, C]``."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        return TokenClassifierOutput(logits=self.head(self.encoder(input_ids, mask.bool())[1]))


register_texts(
    BiLstmConfig,
    {
        AutoModelForSequenceClassification: BiLstmForSequenceClassification,
        AutoModelForTokenClassification: BiLstmForTokenClassification,
    },
    hidden_size="hidden_size",
)
