"""A standard encoder whose head reads more than its last states.

The states of all layers, weighted: Peters et al. 2018, arXiv 1802.05365 (ELMo). Those of all tokens, pooled in three
ways: Howard and Ruder 2018, arXiv 1801.06146 (ULMFiT). Those of adapters beside it: Wang et al. 2020, arXiv 2002.01808
(K-Adapter).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (the field's own abbreviation)
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedConfig,
)
from transformers.modeling_outputs import SequenceClassifierOutput, TokenClassifierOutput

from compress.architectures.knowledge_adapter import KnowledgeAdapter
from compress.architectures.wrapped_encoder import (
    AroundConfig,
    AroundNetwork,
    named_inputs,
    needs_standard_head,
    register_around,
)
from eval.errors import UserError
from eval.kinds.kind_registry import kind_of
from eval.task import TaskSpec
from teachers.anatomy.encoder import base_encoder, classifier_place, is_causal, layer_count
from teachers.anatomy.forms.linear_form import in_linear_form
from teachers.anatomy.pooler import without_pooler
from teachers.anatomy.pooling import last_real
from teachers.seeding import seeded
from teachers.taskmodel import TaskModel, build_taskmodel


class StatesHeadConfig(AroundConfig):
    """Config of an encoder with such a head.

    Args:
        inner: Config of the encoder, or its fields.
        mix: Whether the states are a weighted sum of those of all layers, or those of the last layer.
        layer_norm: Whether each layer's states are normalised before they are weighted.
        concat: Whether a text's features are three pooled vectors, or the mean over its tokens.
        dense_size: Width of the hidden layer before the classifier; None for no such layer.
        dropout: Share of the features that is dropped in training.
        adapters: Arguments of each ``KnowledgeAdapter`` whose states stand beside those of the encoder.
        kwargs: What every config of transformers has.
    """

    model_type = "compress-states-head"

    def __init__(
        self,
        inner: PreTrainedConfig | dict[str, Any] | None = None,
        mix: bool = False,
        layer_norm: bool = False,
        concat: bool = False,
        dense_size: int | None = None,
        dropout: float = 0.1,
        adapters: Sequence[Mapping[str, Any]] = (),
        **kwargs: Any,
    ) -> None:
        self.adapters = [dict(one) for one in adapters]
        self.mix, self.layer_norm, self.concat = mix, layer_norm, concat
        self.dense_size, self.dropout = dense_size, dropout
        super().__init__(inner, **kwargs)


class ScalarMix(nn.Module):
    """``gamma * sum_j softmax(s)_j h_j`` over the embeddings' output and all layers; s starts at 0, gamma at 1.

    With ``layer_norm`` each ``h_j`` is normalised over the channels of a token first, without gain and offset; so a
    text's states do not depend on the others of its batch, as they would if all tokens were normalised together.

    Args:
        count: How many states there are: one more than layers.
        layer_norm: Whether they are normalised.
    """

    def __init__(self, count: int, layer_norm: bool = False) -> None:
        super().__init__()
        self.layer_norm = layer_norm
        self.scalars = nn.Parameter(torch.zeros(count))
        self.gamma = nn.Parameter(torch.ones(()))

    def forward(self, states: tuple[Tensor, ...]) -> Tensor:
        """Return the sum, ``[B, L, d]``, of as many states ``[B, L, d]``."""
        if self.layer_norm:
            width = [int(states[0].shape[-1])]  # a plain number, which every exporter takes
            states = tuple(F.layer_norm(state, width) for state in states)
        weights = self.scalars.softmax(dim=0)
        mixed = sum((weight * state for weight, state in zip(weights, states, strict=True)), torch.zeros(()))
        return self.gamma * mixed


def concat_pooled(states: Tensor, mask: Tensor, text: Tensor) -> Tensor:
    """Return ``[h, max over tokens, mean over tokens]``, ``[B, 3 d]``.

    Args:
        states: Hidden states ``[B, L, d]``.
        mask: 1 for real tokens, ``[B, L]``.
        text: h, the state that stands for the whole text, ``[B, d]``: in the paper's one-way networks the last token's.
    """
    highest = states.masked_fill(mask[..., None] == 0, torch.finfo(states.dtype).min).amax(dim=1)
    return torch.cat([text, highest, mean_pooled(states, mask)], dim=-1)


def mean_pooled(states: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over real tokens, ``[B, d]``; arguments as ``concat_pooled`` takes them."""
    weights = mask[..., None].to(states.dtype)
    return (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


class _StatesHead(AroundNetwork):
    """Base of the networks: encoder, mix, classifier."""

    config_class = StatesHeadConfig

    def __init__(self, config: StatesHeadConfig) -> None:
        super().__init__(config)
        self.inner = in_linear_form(without_pooler(AutoModel.from_config(config.inner)))
        self.mix = ScalarMix(layer_count(self.inner) + 1, config.layer_norm) if config.mix else None
        self.adapters = nn.ModuleList(KnowledgeAdapter(config.hidden_size, **one) for one in config.adapters)
        width = config.hidden_size * (3 if config.concat else 1) * (1 + len(self.adapters))
        self.dropout = nn.Dropout(config.dropout)
        self.dense = None if config.dense_size is None else nn.Linear(width, config.dense_size)
        self.classifier = nn.Linear(config.dense_size or width, config.num_labels)
        self.post_init()

    def _states(self, inputs: dict[str, Tensor], **kwargs: Any) -> tuple[Tensor, Any]:
        """Return the states that the head reads, and those of all layers if they were made."""
        if self.mix is not None or self.adapters:
            kwargs["output_hidden_states"] = True
        found = self.inner(**inputs, **kwargs)
        hidden = found.get("hidden_states")
        states = found.last_hidden_state if self.mix is None else self.mix(hidden)
        if self.adapters:
            beside = [adapter(hidden, inputs["attention_mask"]) for adapter in self.adapters]
            states = torch.cat([states, *beside], dim=-1)
        return states, hidden

    def _classified(self, features: Tensor) -> Tensor:
        features = self.dropout(features)
        if self.dense is not None:
            features = self.dropout(torch.relu(self.dense(features)))
        logits: Tensor = self.classifier(features)
        return logits


class StatesHeadForSequenceClassification(_StatesHead):
    """Classes, labels or a number of a text."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """Return logits ``[B, C]``."""
        inputs = named_inputs(input_ids, attention_mask, token_type_ids)
        states, hidden = self._states(inputs, **kwargs)
        mask = inputs["attention_mask"]
        if self.config.concat:
            place = classifier_place(self.config.inner)
            text = last_real(states, mask) if is_causal(self.inner) else states[:, place]
            features = concat_pooled(states, mask, text)
        else:
            features = mean_pooled(states, mask)
        return SequenceClassifierOutput(logits=self._classified(features), hidden_states=hidden)


class StatesHeadForTokenClassification(_StatesHead):
    """A tag of each token."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> TokenClassifierOutput:
        """Return logits ``[B, L, C]``."""
        states, hidden = self._states(named_inputs(input_ids, attention_mask, token_type_ids), **kwargs)
        return TokenClassifierOutput(logits=self._classified(states), hidden_states=hidden)


def with_states_head(
    base: TaskModel, task: TaskSpec, seed: int = 0, trained: Sequence[nn.Module] = (), **fields: Any
) -> TaskModel:
    """Return a copy of a network's encoder with such a head; the network stays as it is.

    Args:
        base: Any network of transformer layers that ``states_unanswerable`` finds nothing wrong with.
        task: What the copy answers.
        seed: Seeds the head.
        trained: Adapters whose weights those of ``fields["adapters"]`` begin with, if they are not new.
        fields: Those of ``StatesHeadConfig``.
    """
    config = StatesHeadConfig(base_encoder(base.model).config.to_dict(), **fields)
    built = build_taskmodel(config, base.tokenizer, task, seed=seed, name=base.name)
    own, encoder = base_encoder(built.model), base_encoder(base.model).state_dict()
    own.load_state_dict({name: tensor for name, tensor in encoder.items() if name in own.state_dict()})
    for adapter, known in zip_longest(built.model.adapters, trained):
        if known is not None:
            adapter.load_state_dict(known.state_dict())
            continue
        with seeded(seed):
            adapter.start()
    return built


def trained_adapters(source: TaskModel, base: TaskModel) -> list[KnowledgeAdapter]:
    """Return the adapters of a network that was trained over the encoder of ``base``.

    Args:
        source: The network.
        base: What shall be read by them now.

    Raises:
        UserError: If it has none, or they read another encoder.
    """
    adapters = list(getattr(source.model, "adapters", ()))
    if not adapters:
        raise UserError(
            f"head: k_adapter.adapters: {source.folder or source.name} holds no knowledge adapter; train one with "
            "finetune: {head: k_adapter, freeze: [embeddings, encoder]}"
        )
    own, known = base_encoder(base.model).state_dict(), base_encoder(source.model).state_dict()
    if any(name not in own or not torch.equal(tensor, own[name]) for name, tensor in known.items()):
        raise UserError(
            f"head: k_adapter.adapters: {source.folder or source.name} was trained over another encoder than that of "
            f"{base.folder or base.name}, or its encoder was trained too; adapters stand side by side over one base "
            "that stayed as it is: train each with freeze: [embeddings, encoder]"
        )
    return adapters


def states_unanswerable(base: TaskModel, task: TaskSpec, name: str, tokens: bool) -> list[str]:
    """Return why a network cannot get such a head for this task; nothing if it can.

    Args:
        base: The network.
        task: The task.
        name: Of the head, for messages.
        tokens: Whether the head can answer each token.
    """
    kind, found = kind_of(task.kind), []
    per_text = kind.head == "ForSequenceClassification" and not kind.joined
    if not per_text and not (tokens and kind.head == "ForTokenClassification"):
        whole = " and tagging" if tokens else ""
        found.append(f"head: {name}: is for classes, labels and scores of texts{whole}, and the task is {task.kind}")
    if why := needs_standard_head(base.model.config):
        found.append(f"head: {name}: cannot stand on {why}")
    return found


register_around(
    StatesHeadConfig,
    {
        AutoModelForSequenceClassification: StatesHeadForSequenceClassification,
        AutoModelForTokenClassification: StatesHeadForTokenClassification,
    },
)
