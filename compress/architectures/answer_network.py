"""A stochastic answer network: a head for pairs that compares the two texts in several steps and averages its answers.

Liu, Duh, Gao 2018, arXiv 1804.07888, as the head of pair tasks in MT-DNN (Liu, He, Chen, Gao 2019, arXiv 1901.11504).
It reads all hidden states, so no standard class holds it: it is a custom architecture around a standard encoder, which
other tasks of a training can share. ``compress.load`` loads it, and it exports to ONNX, one step after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForSequenceClassification, PreTrainedConfig
from transformers.modeling_outputs import SequenceClassifierOutput

from compress.architectures.token_network import matched, places_of_texts, words_of_texts
from compress.architectures.wrapped_encoder import AroundConfig, AroundNetwork, needs_standard_head, register_around
from eval.errors import UserError
from eval.kinds.kind_registry import kind_of
from eval.task import TaskSpec
from teachers.anatomy.encoder import base_encoder
from teachers.anatomy.forms.linear_form import in_linear_form
from teachers.anatomy.pooler import without_pooler
from teachers.taskmodel import TaskModel, build_taskmodel


class AnswerNetworkConfig(AroundConfig):
    """Config of an encoder with an answer network as head.

    Args:
        inner: Config of the encoder, or its fields.
        steps: K, how often the network reads the first text. Default 5, as in MT-DNN.
        step_dropout: Share of whole steps that are dropped in training. Default 0.1, likewise.
        dropout: Share of the features of a step that is dropped in training.
        update_first: Whether a step updates its state before it classifies; see ``AnswerNetwork``.
        pair: Always true; both texts are needed.
        skipped_ids: Tokens that are no part of a text.
        separator_id: The token after the first text.
        kwargs: What every config of transformers has.
    """

    model_type = "compress-answer-network"

    def __init__(
        self,
        inner: PreTrainedConfig | dict[str, Any] | None = None,
        steps: int = 5,
        step_dropout: float = 0.1,
        dropout: float = 0.1,
        update_first: bool = False,
        pair: bool = True,
        skipped_ids: Sequence[int] = (),
        separator_id: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.steps, self.step_dropout, self.dropout = steps, step_dropout, dropout
        self.update_first = update_first
        self.pair, self.skipped_ids, self.separator_id = pair, list(skipped_ids), separator_id
        super().__init__(inner, **kwargs)


class AnswerNetwork(nn.Module):
    """The head: premise ``P`` and hypothesis ``H`` are the hidden states of the words of the first and the second text.

    ``s_0 = sum_j softmax_j(w · H_j) H_j``; at each step ``x_k = sum_j softmax_j(s_k · W P_j) P_j``,
    ``p_k = softmax(V [s_k, x_k, s_k * x_k, |s_k - x_k|])`` and ``s_{k+1} = GRU(x_k, s_k)``. The answer is the mean of
    the ``p_k``; in training of those steps that are kept.

    This is the order of the authors' code: ``p_k`` compares ``x_k`` with the state that chose it, and nothing reads the
    last update, which is left out. The papers' formula updates the state before it classifies: ``s_{k+1} = GRU(x_k,
    s_k)`` and then ``p_k = softmax(V [s_{k+1}, x_k, s_{k+1} * x_k, |s_{k+1} - x_k|])``, so that there are as many
    updates as steps. ``update_first`` takes that order; the weights are the same.

    Args:
        config: Sizes, shares and the order.
    """

    def __init__(self, config: AnswerNetworkConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.steps, self.step_dropout, self.update_first = config.steps, config.step_dropout, config.update_first
        self.start = nn.Linear(width, 1, bias=False)
        self.attend = nn.Linear(width, width, bias=False)
        self.update = nn.GRUCell(width, width)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(4 * width, config.num_labels)

    def forward(self, states: Tensor, premise: Tensor, hypothesis: Tensor) -> Tensor:
        """Return the logarithm of the mean probabilities, ``[B, C]``.

        Args:
            states: Hidden states ``[B, L, d]``.
            premise: True for words of the first text, ``[B, L]``.
            hypothesis: True for words of the second text, ``[B, L]``.
        """
        state = summary(states, self.start(states)[..., 0], hypothesis)
        found = []
        for step in range(self.steps):
            scores = torch.bmm(states, self.attend(state)[:, :, None])[..., 0]
            seen = summary(states, scores, premise)
            updated = self.update(seen, state) if self.update_first or step < self.steps - 1 else state
            compared = matched(updated if self.update_first else state, seen)
            found.append(self.classifier(self.dropout(compared)).log_softmax(dim=-1))
            state = updated
        answers = torch.stack(found, dim=1)
        return mean_answer(answers, self._kept(answers) if self.training else None)

    def _kept(self, answers: Tensor) -> Tensor:
        """Return which steps of each row are kept, boolean ``[B, K]``; one always is."""
        rows, steps = answers.shape[:2]
        kept = torch.rand(rows, steps, device=answers.device) >= self.step_dropout
        always = torch.randint(steps, (rows, 1), device=answers.device)
        return kept.scatter(1, always, True)


def summary(states: Tensor, scores: Tensor, chosen: Tensor) -> Tensor:
    """Return ``sum_j softmax_j(score_j) h_j`` over the chosen places, ``[B, d]``; 0 for a row without any.

    Args:
        states: h, ``[B, L, d]``.
        scores: ``[B, L]``.
        chosen: Boolean ``[B, L]``.
    """
    weights = scores.masked_fill(~chosen, torch.finfo(scores.dtype).min).softmax(dim=-1) * chosen
    return torch.bmm(weights[:, None], states)[:, 0]


def mean_answer(answers: Tensor, kept: Tensor | None = None) -> Tensor:
    """Return the logarithm of the mean of the steps' probabilities, ``[B, C]``.

    Args:
        answers: Their logarithms, ``[B, K, C]``.
        kept: The steps that count, boolean ``[B, K]``, at least one a row; all by default.
    """
    if kept is None:
        kept = torch.ones_like(answers[..., 0], dtype=torch.bool)
    total = answers.masked_fill(~kept[..., None], torch.finfo(answers.dtype).min).logsumexp(dim=1)
    return total - kept.sum(dim=1, keepdim=True).to(answers.dtype).log()


class AnswerNetworkForSequenceClassification(AroundNetwork):
    """A standard encoder with an answer network: classes of pairs of texts."""

    config_class = AnswerNetworkConfig

    def __init__(self, config: AnswerNetworkConfig) -> None:
        super().__init__(config)
        self.inner = without_pooler(in_linear_form(AutoModel.from_config(config.inner)))
        self.head = AnswerNetwork(config)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """Return logits ``[B, C]``, which are logarithms of probabilities."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        found = self.inner(input_ids=input_ids, attention_mask=mask, **types, **kwargs)
        premise, hypothesis = words_of_texts(input_ids, mask, self.config)
        logits = self.head(found.last_hidden_state, premise, hypothesis)
        return SequenceClassifierOutput(logits=logits, hidden_states=found.get("hidden_states"))


def with_answer_network(base: TaskModel, task: TaskSpec, seed: int = 0, **fields: Any) -> TaskModel:
    """Return a copy of a network's encoder with an answer network as its head; the network stays as it is.

    Args:
        base: Any network of transformer layers.
        task: What the copy answers: classes of pairs.
        seed: Seeds the head.
        fields: ``steps``, ``step_dropout``, ``dropout`` and ``update_first`` of ``AnswerNetworkConfig``, where they
            differ.

    Raises:
        UserError: If it cannot answer this task, or has no encoder to stand on.
    """
    if problems := unanswerable(base, task):
        raise UserError(*problems)
    places = places_of_texts(base.tokenizer, task)
    config = AnswerNetworkConfig(base_encoder(base.model).config.to_dict(), **places, **fields)
    built = build_taskmodel(config, base.tokenizer, task, seed=seed, name=base.name)
    own, encoder = base_encoder(built.model), base_encoder(base.model).state_dict()
    own.load_state_dict({name: tensor for name, tensor in encoder.items() if name in own.state_dict()})
    return built


def unanswerable(base: TaskModel, task: TaskSpec) -> list[str]:
    """Return why a network cannot get an answer network for this task; nothing if it can."""
    found = []
    if not kind_of(task.kind).one_label or not task.pair:
        form = "pairs" if task.pair else "single texts"
        found.append(f"head: answer_network: is for classes of pairs of texts, and the task is {task.kind} of {form}")
    if base.tokenizer.sep_token_id is None:
        found.append("head: answer_network: the tokenizer has no separator, which tells the texts of a pair apart")
    if why := needs_standard_head(base.model.config):
        found.append(f"head: answer_network: cannot stand on {why}")
    return found


register_around(AnswerNetworkConfig, {AutoModelForSequenceClassification: AnswerNetworkForSequenceClassification})
