"""A standard encoder that reads facts beside the words they are about, each seen by these words alone.

Source: Liu et al. 2020, arXiv 1909.07606 (K-BERT).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification, PreTrainedConfig

from compress.architectures.wrapped_encoder import (
    AroundConfig,
    AroundNetwork,
    added,
    labels_of,
    named_inputs,
    needs_standard_head,
    register_around,
)
from eval.encoding import TREE
from eval.kinds.kind_registry import kind_of
from eval.task import TaskSpec
from teachers.anatomy.encoder import embedding_parts, family_of, first_position
from teachers.anatomy.forms.linear_form import in_linear_form
from teachers.taskmodel import TaskModel


class KBertConfig(AroundConfig):
    """Config of a network that reads facts.

    Args:
        inner: Config of the standard network with its head, or its fields.
        triples: The facts: subject, relation and object of each with tabs between them.
        branches: Most facts for each mention of a subject.
        kwargs: What every config of transformers has.
    """

    model_type = "compress-k-bert"

    def __init__(
        self,
        inner: PreTrainedConfig | dict[str, Any] | None = None,
        triples: Sequence[str] = (),
        branches: int = 2,
        **kwargs: Any,
    ) -> None:
        self.triples, self.branches = [str(triple) for triple in triples], int(branches)
        super().__init__(inner, **kwargs)


def visible_matrix(branches: Tensor, mentions: Tensor, mask: Tensor) -> Tensor:
    """Return which tokens see which, booleans ``[B, L, L]``: whether token i (second axis) sees token j (third).

    It does if both are of the text, if both are of the same branch, or if one is of the mention that the other's branch
    hangs on; and if j is no padding.

    Args:
        branches: The branch that each token is of, 0 for the text, ``[B, L]``.
        mentions: The mention that each token is of or hangs on, 0 for none, ``[B, L]``.
        mask: 1 for real tokens, ``[B, L]``.

    Examples:
        >>> import torch
        >>> branches, mentions = torch.tensor([[0, 0, 1, 2]]), torch.tensor([[1, 0, 1, 1]])
        >>> visible_matrix(branches, mentions, torch.ones(1, 4))[0].int().tolist()
        [[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 1]]
    """
    one, other = branches[:, :, None], branches[:, None, :]
    hangs = (mentions[:, :, None] == mentions[:, None, :]) & (mentions[:, None, :] > 0) & (one * other == 0)
    return ((one == other) | hangs) & (mask[:, None, :] > 0)


def soft_positions(branches: Tensor, mentions: Tensor) -> Tensor:
    """Return the position of each token, from 0, ``[B, L]``; arguments as ``visible_matrix`` takes them.

    Tokens of the text are counted as if there were no branches, those of a branch from the last token of its mention.

    Examples:
        >>> import torch
        >>> branches, mentions = torch.tensor([[0, 0, 0, 0, 1, 1, 2]]), torch.tensor([[0, 1, 1, 0, 1, 1, 1]])
        >>> soft_positions(branches, mentions).tolist()
        [[0, 1, 2, 3, 3, 4, 3]]
    """
    of_text, order = branches == 0, torch.arange(branches.shape[1], device=branches.device)
    places = of_text.long().cumsum(dim=1) - 1
    carried_by = (mentions[:, :, None] == mentions[:, None, :]) & of_text[:, None, :]
    last = torch.where(carried_by, places[:, None, :], 0).amax(dim=-1)
    rank = ((branches[:, :, None] == branches[:, None, :]) & (order[None, :] <= order[:, None])).long().sum(dim=-1)
    return torch.where(of_text, places, last + rank)


class _KBert(AroundNetwork):
    """Base of the networks: a standard one, whole, which is given the visible matrix and soft positions."""

    config_class = KBertConfig
    auto: Any

    def __init__(self, config: KBertConfig) -> None:
        super().__init__(config)
        self.inner = in_linear_form(self.auto.from_config(config.inner))
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        branch_ids: Tensor | None = None,
        mention_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return what the standard network does; without branches it sees a text alone."""
        inputs = named_inputs(input_ids, attention_mask, token_type_ids)
        branches = torch.zeros_like(input_ids) if branch_ids is None else branch_ids
        mentions = torch.zeros_like(input_ids) if mention_ids is None else mention_ids
        sees = visible_matrix(branches, mentions, inputs["attention_mask"])
        inputs["attention_mask"] = added(sees, self.inner.dtype)
        inputs["position_ids"] = soft_positions(branches, mentions) + first_position(self.inner.config)
        return self.inner(**inputs, **kwargs)


class KBertForSequenceClassification(_KBert):
    """Classes, labels or a number of a text or a pair."""

    auto = AutoModelForSequenceClassification


class KBertForTokenClassification(_KBert):
    """A tag of each token; what stands at those of branches means nothing."""

    auto = AutoModelForTokenClassification


CLASSES: dict[str, type[_KBert]] = {
    "ForSequenceClassification": KBertForSequenceClassification,
    "ForTokenClassification": KBertForTokenClassification,
}
"""End of the name of a standard class with its head -> the network around it."""


def with_knowledge(base: TaskModel, triples: Sequence[str], branches: int) -> TaskModel:
    """Return a copy of a model that reads facts; the model stays as it is.

    Args:
        base: A standard model that ``cannot_read_facts`` finds nothing wrong with.
        triples: As ``KBertConfig`` takes them.
        branches: Likewise.
    """
    network = base.model
    fields = {"problem_type": network.config.problem_type, **labels_of(network)}
    made = CLASSES[kind_of(base.task.kind).head](KBertConfig(network.config, triples, branches, **fields))
    made.inner = copy.deepcopy(network)
    return replace(base, model=made.eval(), folder=None)


def cannot_read_facts(base: TaskModel, task: TaskSpec) -> list[str]:
    """Return why a model cannot read facts for this task; nothing if it can."""
    kind, config, found = kind_of(task.kind), base.model.config, []
    if kind.head not in CLASSES or kind.joined:
        found.append(
            f"head: k_bert: is for classes, labels and scores of texts and for tags, and the task is {task.kind}"
        )
    family = family_of(config)
    if why := needs_standard_head(config):
        found.append(f"head: k_bert: cannot stand on {why}")
    elif family.causal or not (
        family.adds_mask and family.plain_attention and "positions" in embedding_parts(base.model)
    ):
        found.append(
            f"head: k_bert: {family.model_type} does not take both a mask of every two tokens and a position for each; "
            "take a family such as bert or roberta"
        )
    return found


register_around(
    KBertConfig,
    {
        AutoModelForSequenceClassification: KBertForSequenceClassification,
        AutoModelForTokenClassification: KBertForTokenClassification,
    },
    more_inputs=TREE,
)
