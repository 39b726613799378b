"""MiniLM and MiniLMv2: the student's last layer learns how the teacher's relates the tokens to each other."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypedDict

import torch
from pydantic import Field
from torch import Tensor

from compress.distill.components.attention import relation_kl, relation_scores
from compress.distill.components.distillation import Distillation, FromTeacher, odd_attention, one_history
from compress.technique import Inputs, Outcome
from eval.errors import UserError
from teachers.anatomy.attention_heads import has_all_heads, head_counts, key_widths
from teachers.anatomy.encoder import (
    family_of,
    is_causal,
    layer_count,
    layer_parts,
    layers,
    reshaped,
)
from teachers.data.encoded_dataset import Batch, EncodedDataset
from teachers.losses.loss import Loss
from teachers.signals.hooks import Signals, SignalSpec
from teachers.signals.model_teacher import ModelTeacher, Reader, TeacherSource
from teachers.taskmodel import TaskModel, build_taskmodel
from teachers.training.config import Training

Relation = tuple[Literal["queries", "keys", "values"], Literal["queries", "keys", "values"]]
RELATIONS: dict[str, dict[str, Relation]] = {
    "v1": {"attention": ("queries", "keys"), "values": ("values", "values")},
    "v2": {"queries": ("queries", "queries"), "keys": ("keys", "keys"), "values": ("values", "values")},
}
"""Terms of the loss, and the two signals whose products each compares."""


class SelfAttention(TypedDict):
    """What one layer computes of every token, ``[B, L, heads · head width]`` each."""

    queries: Tensor
    keys: Tensor
    values: Tensor


class MiniLMDistillation(Distillation):
    """Train the student to relate tokens in its last layer as a layer of the teacher does; any depth and width.

    ``loss = Σ over relations of mean over heads and tokens of KL(R_T ‖ R_S)`` with ``R = softmax(X Yᵀ / √d)``, each
    side with its own head width d. ``v2`` relates queries to queries, keys to keys and values to values, all heads
    joined and cut anew into ``relation_heads``. ``v1`` takes the attention itself, queries to keys, and values to
    values, head by head.

    Attributes:
        relations: ``v2`` or ``v1``. Default v2, the authors' later and freer form.
        relation_heads: Heads that v2 cuts the channels into; it must divide the width of both networks. Default 48,
            the paper's for teachers of base size; 64 for large ones.
        teacher_layer: The teacher layer that is imitated, from 0. Default: the last, as for teachers of base size; the
            paper takes 20 of the 24 layers of BERT-large and 18 of the 24 of RoBERTa-large.
        assistant: Whether a teacher assistant stands between, of the teacher's depth and the student's width, with
            random weights at first: v1's way to students of at most half the depth and width. It trains as long.
        training: 3 epochs of 32 at 2e-4, warm-up 1%, the last weights kept, since no label is read. The paper: 400,000
            steps of 256 at 6e-4, of which 4,000 warm up.

    Needs:
        Training examples and a teacher with the student's tokenizer.

    Reduces:
        Nothing by itself; it recovers a student of any depth and width, with random weights too.

    Limits:
        It trains no head: fine-tune or distil the student on its task afterwards, or add ``distill.logits`` or
        ``distill.labels`` to it in ``distill.combined``. v1 needs equal numbers of heads and attention without rotation
        or relative positions; v2 reads queries and keys before rotation. Only real tokens count, averaged in each
        sentence first, then over sentences.

    Source:
        Wang, Wei, Dong, Bao, Yang, Zhou 2020, arXiv 2002.10957; v2: Wang, Bao, Huang, Dong, Wei 2021,
        arXiv 2012.15828.
    """

    name: ClassVar[str] = "distill.minilm"
    version: ClassVar[int] = 2
    source: ClassVar[str] = "Wang, Wei, Dong, Bao, Yang, Zhou 2020, arXiv 2002.10957; v2: arXiv 2012.15828"

    relations: Literal["v1", "v2"] = "v2"
    relation_heads: int = Field(default=48, ge=1)
    teacher_layer: int | None = Field(default=None, ge=0)
    assistant: bool = False
    training: Training = Training(epochs=3, learning_rate=2e-4, batch_size=32, warmup_steps=0.01, keep="last")

    def trainings(self) -> tuple[Training, ...]:
        """Return the training block of the assistant, if there is one, and of the student."""
        return (self.training, self.training) if self.assistant else (self.training,)

    def term_problem(self) -> str:
        """Refuse the assistant, which is trained before the student."""
        if not self.assistant:
            return ""
        return "assistant: true trains two models in turn, so it cannot be a term; make it a step of its own before"

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse networks whose relations cannot be read or compared."""
        teacher, family = inputs.teacher, family_of(student.model).model_type
        if teacher is None:
            return []
        found = []
        if not layer_parts(student.model, layers(student.model)[-1]).keys() & {"query", "query_key_value"}:
            found.append(f"{family} has no modules that give queries, keys and values; distil its logits or states")
        else:
            found += self._relation_problems(student, teacher)
        if self.teacher_layer is not None and self.teacher_layer >= teacher.layers:
            found.append(f"teacher_layer {self.teacher_layer}: the teacher's layers go from 0 to {teacher.layers - 1}")
        return [f"{self.name}: {problem}" for problem in found]

    def _relation_problems(self, student: TaskModel, teacher: TeacherSource) -> list[str]:
        found, heads = [], head_counts(student.model)[-1]
        if self.relations == "v2":
            return head_problems(self.relation_heads, key_widths(student.model)[-1], teacher.hidden_size)
        if whose := odd_attention(student, teacher):
            found.append(
                f"v1 needs attention scores that are plain products of queries and keys, {whose} are not; "
                "relations: v2 compares queries and keys apart"
            )
        if heads != teacher.heads:
            found.append(
                f"v1 needs equal numbers of heads, the student has {heads} and the teacher {teacher.heads}; "
                "relations: v2 takes any"
            )
        return found

    def apply(self, student: TaskModel, inputs: Inputs, generator: torch.Generator) -> Outcome:
        """Train the assistant, if one is wanted, then ``student`` in place."""
        if inputs.teacher is None:
            raise TypeError(f"{self.name} was applied without a teacher; the engine refuses this earlier")
        unscored = replace(inputs, validation=None)  # the head is not trained, so its scores say nothing
        teacher, method = inputs.teacher, self
        histories: dict[str, list[dict[str, Any]]] = {}
        if self.assistant:
            between = assistant_for(student, teacher.layers, generator.initial_seed())
            objective = FromTeacher(self, teacher)
            histories["assistant"] = self.train(between, unscored, objective, generator, stage="assistant")
            teacher, method = ModelTeacher(between, budget_bytes=0), self.model_copy(update={"teacher_layer": None})
        objective = FromTeacher(method, teacher)
        histories["student"] = self.train(student, unscored, objective, generator, stage="student")
        return Outcome(student, facts={"history": one_history(histories)})

    def bind(self, student: TaskModel, rows: EncodedDataset, teacher: TeacherSource) -> RelationLoss:
        """Compute or find the signals of the imitated layer for these rows.

        Raises:
            UserError: If an earlier step took heads away, and those that are left do not fit the relations.
        """
        if not has_all_heads(student.model) and (problems := self._relation_problems(student, teacher)):
            raise UserError(*[f"{self.name}: {problem}" for problem in problems])
        own = layer_count(student.model) - 1
        other = teacher.layers - 1 if self.teacher_layer is None else self.teacher_layer
        heads = self.relation_heads if self.relations == "v2" else teacher.heads
        reader, causal = teacher.read(rows, self.wanted(other)), is_causal(student.model)
        return RelationLoss(self.relations, heads, (own, other), reader, self.wanted(own), causal)

    def wanted(self, layer: int) -> SignalSpec:
        """Return what is read of the layer whose relations are compared."""
        signals = {signal for relation in RELATIONS[self.relations].values() for signal in relation}
        return SignalSpec(**dict.fromkeys(signals, (layer,)), logits=False)


@dataclass
class RelationLoss(Loss):
    """The loss of ``distill.minilm`` over known rows.

    Attributes:
        version: ``v1`` or ``v2``.
        heads: Heads that both sides are cut into.
        layers: The layer of the student and that of the teacher.
        reader: The teacher's outputs.
        reads: What of the student is read.
        causal: Whether a token sees itself and those before it alone.
    """

    version: Literal["v1", "v2"]
    heads: int
    layers: tuple[int, int]
    reader: Reader
    reads: SignalSpec
    causal: bool = False

    @property
    def relations(self) -> dict[str, Relation]:
        """Terms, and the two signals whose products each compares."""
        return RELATIONS[self.version]

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Return how many sentences there are, of which an example may have several."""
        return dict.fromkeys(self.relations, batch.rows.new_tensor(len(batch.rows)))

    def __call__(self, student: Signals, batch: Batch) -> dict[str, Tensor]:
        """Return one term for each relation, ``{"queries", "keys", "values"}`` or ``{"attention", "values"}``."""
        own, other = self.layers
        first, second = self_attention(student, own), self_attention(self.reader(batch), other)
        return minilm_relations(first, second, batch.mask, self.heads, self.version, self.causal)


def self_attention(signals: Signals, layer: int) -> SelfAttention:
    """Return the queries, keys and values that were read of one layer."""
    return {"queries": signals.queries[layer], "keys": signals.keys[layer], "values": signals.values[layer]}


def minilm_relations(
    student: SelfAttention,
    teacher: SelfAttention,
    mask: Tensor,
    heads: int,
    version: Literal["v1", "v2"] = "v2",
    causal: bool = False,
) -> dict[str, Tensor]:
    """Return how differently two layers relate the tokens to each other, ``KL(teacher ‖ student)`` of each relation.

    Averaged over heads and the real tokens of each sentence, then over sentences; the loss is the sum of the terms.
    Wang et al. 2020, arXiv 2002.10957 (v1); Wang et al. 2021, arXiv 2012.15828 (v2).

    Args:
        student: Queries, keys and values of its last layer, ``[B, L, d]`` each.
        teacher: Those of the layer that is imitated, ``[B, L, d']`` each; ``d`` and ``d'`` may differ.
        mask: 1 for real tokens, ``[B, L]``.
        heads: Heads that both sides are cut into: the relation heads of v2, for v1 the attention heads of both.
        version: ``v2`` compares queries to queries, keys to keys and values to values; ``v1`` queries to keys (the
            attention) and values to values.
        causal: Whether a token sees itself and those before it alone; it then is related to no others.

    Returns:
        ``{"queries", "keys", "values"}``, for v1 ``{"attention", "values"}``.

    Examples:
        >>> import torch
        >>> wide = {name: torch.randn(2, 5, 24) for name in ("queries", "keys", "values")}
        >>> thin = {name: 2 * states[..., :12] for name, states in wide.items()}
        >>> terms = minilm_relations(thin, wide, torch.ones(2, 5), heads=6)
        >>> sorted(terms), all(term > 0 for term in terms.values())
        (['keys', 'queries', 'values'], True)
        >>> minilm_relations(wide, wide, torch.ones(2, 5), heads=6, version="v1")["attention"].item()
        0.0
    """

    def scores(side: SelfAttention, relation: Relation) -> Tensor:
        left, right = (side[name].float() for name in relation)
        return relation_scores(left, right, heads)

    return {
        name: relation_kl(scores(student, relation), scores(teacher, relation), mask, causal)
        for name, relation in RELATIONS[version].items()
    }


def head_problems(heads: int, student: int, teacher: int) -> list[str]:
    """Return why these relation heads do not fit two widths, with the nearest numbers that do."""
    common = math.gcd(student, teacher)
    if common % heads == 0:
        return []
    fitting = [number for number in range(1, common + 1) if common % number == 0]
    nearest = [max(n for n in fitting if n < heads), *[n for n in fitting if n > heads][:1]]
    return [
        f"relation_heads {heads}: must divide both widths, the student's {student} and the teacher's {teacher}; "
        f"the nearest that {'does is' if len(nearest) == 1 else 'do are'} {' and '.join(map(str, nearest))}"
    ]


def assistant_for(student: TaskModel, depth: int, seed: int) -> TaskModel:
    """Return a network like the student with another depth and random weights."""
    config = reshaped(student.model.config, layers=depth)
    return build_taskmodel(config, student.tokenizer, student.task, seed=seed, name="assistant")
