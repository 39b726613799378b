"""What custom architectures around a standard network share: its config within theirs, its inputs, registration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from compress.architectures.registration import register
from teachers.anatomy.encoder import base_encoder, family_of, max_tokens, mixes_neighbours, model_inputs, shape_of
from teachers.taskmodel import TaskModel, with_head

Model = TypeVar("Model", bound=TaskModel)


class AroundConfig(PreTrainedConfig):  # type: ignore[misc]
    """Base of the configs of networks around a standard one, which is their ``inner``.

    Args:
        inner: Config of the standard network, or its fields.
        kwargs: What every config of transformers has.
    """

    sub_configs = {"inner": AutoConfig}  # noqa: RUF012 (transformers reads it so)

    def __init__(self, inner: PreTrainedConfig | dict[str, Any] | None = None, **kwargs: Any) -> None:
        self.inner = AutoConfig.for_model(**inner) if isinstance(inner, dict) else inner or AutoConfig.for_model("bert")
        super().__init__(**kwargs)

    @property
    def vocab_size(self) -> int:
        """Rows of the word embeddings."""
        return shape_of(self.inner).vocab_size

    @property
    def hidden_size(self) -> int:
        """Channels of the residual stream."""
        return shape_of(self.inner).hidden_size

    @property
    def max_position_embeddings(self) -> int:
        """Most tokens of an input."""
        return max_tokens(self.inner)

    @property
    def type_vocab_size(self) -> int:
        """More than 1 where the standard network takes token types."""
        return 2 if "token_type_ids" in model_inputs(self.inner) else 1


class AroundNetwork(PreTrainedModel):  # type: ignore[misc]
    """Base of networks around a standard one, which is their ``inner``."""

    inner: Any

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the standard network's table of word embeddings."""
        table: nn.Embedding = self.inner.get_input_embeddings()
        return table


def standard_within(model: Model, seed: int = 0) -> Model:
    """Return the standard network that another stands around; any other model as it is.

    A network that is whole (as within K-BERT) shares its weights. An encoder below a head of another kind (such as
    concat pooling) is copied, and gets a new standard head.

    Args:
        model: Any model.
        seed: Seeds a new head.
    """
    if not isinstance(model.model, AroundNetwork):
        return model
    within = replace(model, model=model.model.inner)
    if base_encoder(within.model) is not within.model:
        return within
    return replace(model, model=with_head(within, model.task, seed).model)


def labels_of(network: Any) -> dict[str, Any]:
    """Return the names of a standard network's labels, as fields of the config around it."""
    return {"id2label": network.config.id2label, "label2id": network.config.label2id}


def register_around(config: type[AroundConfig], classes: Mapping[Any, Any], **more: Any) -> None:
    """Make a network around a standard one known to transformers and to ``TaskModel``.

    Args:
        config: Its config.
        classes: Auto class -> the class that holds such a head.
        more: Further fields of its ``Family``.
    """
    dimensions = {name: name for name in ("hidden_size", "vocab_size")} | {"max_positions": "max_position_embeddings"}
    register(config, classes, base="inner", dimensions=dimensions, **more)


def needs_standard_head(config: Any) -> str:
    """Return which encoder cannot stand below a head of another kind, and why, in words; nothing if this one can."""
    if mixes_neighbours(config):
        return "MobileBERT, whose embeddings would read the padding"
    return "Longformer, whose standard heads say which tokens see all others" if family_of(config).global_parts else ""


def added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what is added to attention scores, ``[B, 1, ...]``: 0 for real tokens, very little for padding.

    Args:
        mask: 1 for real tokens, ``[B, L]``; or for tokens that a token sees, ``[B, L, L]``.
        dtype: Of the scores.
    """
    return (1 - mask[:, None].to(dtype)) * (torch.finfo(dtype).min / 2)


def named_inputs(input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None) -> dict[str, Tensor]:
    """Return what the standard network is called with: a mask always, token types if they are given."""
    mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    inputs = {"input_ids": input_ids, "attention_mask": mask}
    return inputs if token_type_ids is None else {**inputs, "token_type_ids": token_type_ids}
