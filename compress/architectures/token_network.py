"""What our own networks share: how they find their texts among the tokens, their config, and their head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from compress.architectures.registration import register
from eval.task import TaskSpec


class TextConfig(PreTrainedConfig):  # type: ignore[misc]
    """Base of the configs of networks that read the words of one text, or of two, and nothing else.

    Args:
        vocab_size: Rows of the embedding table.
        embedding_size: Its columns.
        dense_size: Width of the head's hidden layer.
        dropout: Share of the head's hidden neurons that is dropped in training.
        pair: Whether an input holds two texts.
        skipped_ids: Tokens that are no part of a text: padding, classifier, separators.
        separator_id: The token after the first of two texts.
        pad_token_id: The token whose vector is 0.
        kwargs: What every config of transformers has.
    """

    def __init__(
        self,
        vocab_size: int = 30522,
        embedding_size: int = 300,
        dense_size: int = 200,
        dropout: float = 0.1,
        pair: bool = False,
        skipped_ids: Sequence[int] = (),
        separator_id: int | None = None,
        pad_token_id: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.vocab_size, self.embedding_size = vocab_size, embedding_size
        self.dense_size, self.dropout, self.pair = dense_size, dropout, pair
        self.skipped_ids, self.separator_id = list(skipped_ids), separator_id
        self.pad_token_id = pad_token_id


class TextNetwork(PreTrainedModel):  # type: ignore[misc]
    """Base of networks whose first layer is a table of word vectors, ``words`` in their ``encoder``."""

    base_model_prefix = "encoder"

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the table of word vectors."""
        words: nn.Embedding = self.encoder.words
        return words

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.LSTM | nn.Embedding):
            module.reset_parameters()


class TextHead(nn.Module):
    """Classifier: hidden layer, ReLU, dropout, last layer; two texts meet as [u, v, u * v, |u - v|].

    Args:
        width: Channels of a text's vector.
        config: Sizes, and whether there are two texts.
    """

    def __init__(self, width: int, config: TextConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(4 * width if config.pair else width, config.dense_size)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.dense_size, config.num_labels)

    def forward(self, *texts: Tensor) -> Tensor:
        """Return logits ``[..., C]`` for the vectors of one or two texts, ``[..., width]`` each."""
        features = texts[0] if len(texts) == 1 else matched(*texts)
        logits: Tensor = self.classifier(self.dropout(torch.relu(self.dense(features))))
        return logits


def matched(first: Tensor, second: Tensor) -> Tensor:
    """Return ``[u, v, u * v, |u - v|]`` of two vectors, ``[..., 4 * width]``."""
    return torch.cat([first, second, first * second, (first - second).abs()], dim=-1)


class TextPlaces(Protocol):
    """What a config says of the places of texts among tokens; see ``TextConfig``."""

    pair: bool
    skipped_ids: list[int]
    separator_id: int | None


def places_of_texts(tokenizer: Any, task: TaskSpec) -> dict[str, Any]:
    """Return the fields of ``TextPlaces`` that follow from tokenizer and task."""
    outside = (tokenizer.pad_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id)
    ends = (tokenizer.bos_token_id, tokenizer.eos_token_id)
    return {
        "pair": task.pair,
        "skipped_ids": sorted({int(token) for token in (*outside, *ends) if token is not None}),
        "separator_id": tokenizer.sep_token_id,
    }


def words_of_texts(ids: Tensor, mask: Tensor, config: TextPlaces) -> tuple[Tensor, ...]:
    """Return which tokens are words of the text, or of either text of a pair: boolean ``[B, L]`` each.

    A pair reaches the network as one sequence, and not every tokenizer tells its texts apart by token types; all put a
    separator between them. What comes after the first separator is the second text.

    Args:
        ids: Token ids ``[B, L]``, padded on either side.
        mask: 1 for real tokens.
        config: Which tokens are no words, and the separator.
    """
    real = mask.bool()
    words = real
    for token in config.skipped_ids:
        words = words & (ids != token)
    if not config.pair:
        return (words,)
    second = ((ids == config.separator_id) & real).long().cumsum(dim=1) > 0
    return words & ~second, words & second


def register_texts(
    config: type[TextConfig], heads: dict[Any, type[TextNetwork]], hidden_size: Literal["hidden_size", "embedding_size"]
) -> None:
    """Make an architecture known to transformers and to ``TaskModel``.

    Args:
        config: Its config.
        heads: Auto class -> the class that holds such a head.
        hidden_size: The field of its config that says how wide its token vectors are.
    """
    for network in heads.values():
        network.config_class = config
    register(
        config,
        heads,
        base="encoder",
        dimensions={"hidden_size": hidden_size, "embedding_size": "embedding_size", "vocab_size": "vocab_size"},
        embeddings={"words": "words"},
        heads={"dense": "head.dense", "classifier": "head.classifier"},
        token_types="never",
    )
