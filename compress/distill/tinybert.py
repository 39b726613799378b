"""TinyBERT: embeddings, hidden states and attention scores of the teacher, layer by layer, then its predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (the field's own abbreviation)

from compress.distill.components.attention import Reduction, attention_mse, match_heads, relation_scores
from compress.distill.components.distillation import Distillation, odd_attention, one_history
from compress.distill.components.distillation_losses import (
    of_probabilities,
    paired_logits,
    soft_count,
    soft_cross_entropy,
)
from compress.distill.components.layer_map import LayerMap, map_layers, map_problems, resolve
from compress.distill.components.projection import Projection
from compress.distill.labels import LabelTraining
from compress.technique import Inputs, Outcome, Technique
from eval.encoding import IGNORED
from eval.kinds.kind_registry import kind_of
from eval.task import TaskSpec
from teachers.anatomy.attention_heads import head_counts
from teachers.anatomy.encoder import decoder_layers, is_causal, layer_count, shape_of
from teachers.anatomy.head_bias import score_bias
from teachers.data.encoded_dataset import Batch, EncodedDataset
from teachers.losses.loss import Loss
from teachers.losses.task_loss import task_count, task_loss
from teachers.signals.hooks import NOTHING, Signals, SignalSpec
from teachers.signals.model_teacher import Reader, TeacherSource
from teachers.taskmodel import TaskModel
from teachers.training.config import Training

Stage = Literal["intermediate", "prediction"]


class TinyBertDistillation(Distillation):
    """Train the student on the inside of the teacher first, then on its predictions.

    Stage ``intermediate``: ``loss = embeddings · MSE(E_S W_e, E_T) + Σ over layers of (hidden · MSE(H_S W_h, H_T) +
    attention · MSE(A_S, A_T))`` with the attention scores ``A = Q Kᵀ / √d`` before the softmax, averaged over heads;
    MPNet's have its bias by distance in them.
    Stage ``prediction``: ``loss = T² · mean over rows of -Σ softmax(z_T / T) · log softmax(z_S / T)``, and for
    regression the squared distance to the label. ``stages: [intermediate]`` on unlabelled text is the paper's general
    distillation. As a term of an ``objective`` the stages are one: their losses are added.

    Of an encoder with a decoder (``seq2seq``) the first stage compares the layers of the encoder like those of any
    other, and adds ``cross_attention · MSE(C_S, C_T)`` over the layers of the decoder, of the scores ``C`` with which
    the tokens of the target look at those of the source. The paper has encoders alone.

    Attributes:
        stages: What is trained, one after the other. The labels are read in the prediction of regression alone.
        embeddings: Weight of the embedding output. Default 1 as in the paper, like the next two; 0 leaves it out.
        hidden: Weight of the hidden states.
        attention: Weight of the attention scores.
        cross_attention: Weight of the scores of a decoder's attention to the encoder; nothing without a decoder.
        decoder_map: The teacher's layer of every layer of the student's decoder.
        layer_map: The teacher layer of every student layer; the paper's is ``uniform``.
        temperature: T. Default 1, as in the paper.
        reduction: ``valid`` averages over real tokens and pairs of them. ``code`` does as the authors' code: padding
            counts, and the soft cross-entropy is divided by the number of classes too.
        projection: ``separate`` is the paper's: W_e, and one W_h for all layers, without bias; equal widths need none.
            ``shared`` is the code's: one map with a bias for all, even of equal widths.
        intermediate: How the first stage trains: 10 epochs of 32 (the paper: 20, for large data sets 10, for CoLA
            50) at a constant 5e-5. It is not scored, since the predictions are not trained yet: its last weights count.
        training: How the prediction stage trains. Defaults as in the paper: 3 epochs of 32; rate 3e-5, of its grid.

    Needs:
        Training examples and a teacher with the student's labels and tokenizer.

    Reduces:
        Nothing by itself; it recovers a student of any depth and width, with random weights too.

    Limits:
        Attention scores of XLNet, DeBERTa and ModernBERT hold more than the products of queries and keys: set
        ``attention: 0`` there, and of T5 ``cross_attention: 0`` too. Heads are compared one to one; where their numbers
        differ, neighbouring heads are averaged to the greatest common divisor, which is not in the paper. The teacher
        runs without dropout, which the authors' code leaves on. With ``reduction: code``, signals read from disk have
        zeros at padding.

    Source:
        Jiao, Yin, Shang, Jiang, Chen, Li, Wang, Liu 2020, arXiv 1909.10351.
    """

    name: ClassVar[str] = "distill.tinybert"
    both_stacks: ClassVar[bool] = True
    source: ClassVar[str] = "Jiao, Yin, Shang, Jiang, Chen, Li, Wang, Liu 2020, arXiv 1909.10351"

    stages: tuple[Stage, ...] = Field(default=("intermediate", "prediction"), min_length=1)
    embeddings: float = Field(default=1.0, ge=0)
    hidden: float = Field(default=1.0, ge=0)
    attention: float = Field(default=1.0, ge=0)
    # Left out of records where they say nothing new, so that those of before stay what they were.
    cross_attention: float = Field(default=1.0, ge=0, exclude_if=lambda value: value == 1)
    decoder_map: LayerMap = Field(default="uniform", exclude_if=lambda value: value == "uniform")
    layer_map: LayerMap = "uniform"
    temperature: float = Field(default=1.0, gt=0, le=1000)
    reduction: Reduction = "valid"
    projection: Literal["separate", "shared"] = "separate"
    intermediate: Training = Training(
        epochs=10, learning_rate=5e-5, batch_size=32, schedule="constant", warmup_steps=0.0, keep="last"
    )
    training: Training = Training(epochs=3, learning_rate=3e-5, batch_size=32)

    @model_validator(mode="after")
    def _something_to_learn(self) -> TinyBertDistillation:
        if len(set(self.stages)) < len(self.stages):
            raise ValueError(f"stages {list(self.stages)}: each can stand there once")
        if self.decoder_map == "auto":
            raise ValueError("decoder_map: auto compares the states of an encoder; give a list, uniform, first or last")
        if "intermediate" in self.stages and not (self.embeddings or self.hidden or self.attention):
            raise ValueError(
                "embeddings, hidden and attention are all 0, so the intermediate stage would learn nothing; give one "
                "of them a weight, or set stages: [prediction]"
            )
        return self

    def trainings(self) -> tuple[Training, ...]:
        """Return the training block of every stage."""
        return tuple(self.intermediate if stage == "intermediate" else self.training for stage in self.stages)

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse a layer map that does not fit, attention that is more than products, and vectors as predictions."""
        found, teacher = [], inputs.teacher
        if "prediction" in self.stages and kind_of(student.task.kind).vectors:
            found.append("an embedding has vectors, not predictions; set stages: [intermediate]")
        if "intermediate" in self.stages and teacher is not None:
            found += map_problems(self.layer_map, layer_count(student.model), teacher.layers)
            own = len(decoder_layers(student.model))
            if own and self.cross_attention:
                problems = map_problems(self.decoder_map, own, teacher.decoder_layers)
                found += [f"decoder_{problem.removeprefix('layer_')}" for problem in problems]
            if (self.attention or (own and self.cross_attention)) and (
                whose := odd_attention(student, teacher, biased=True)
            ):
                zero = "attention: 0 and cross_attention: 0" if own else "attention: 0"
                found.append(
                    f"attention scores must be plain products of queries and keys, {whose} are not; "
                    f"set {zero} to learn from embeddings, hidden states and predictions alone"
                )
        return [f"{self.name}: {problem}" for problem in found]

    def apply(self, student: TaskModel, inputs: Inputs, generator: torch.Generator) -> Outcome:
        """Train ``student`` in place, stage after stage."""
        histories: dict[str, list[dict[str, Any]]] = {}
        for stage, training in zip(self.stages, self.trainings(), strict=True):
            objective = self.model_copy(update={"stages": (stage,)}).make_objective(inputs)
            seen = replace(inputs, validation=None) if stage == "intermediate" else inputs
            histories[stage] = self.train(student, seen, objective, generator, training=training, stage=stage)
        return Outcome(student, facts={"history": one_history(histories)})

    def bind(self, student: TaskModel, rows: EncodedDataset, teacher: TeacherSource) -> TinyBertLoss:
        """Choose the layers, make the projections and prepare the teacher's outputs for these rows."""
        if "intermediate" not in self.stages:
            return TinyBertLoss(self, student.task, teacher.read(rows))
        own = shape_of(student.model.config)
        layer_map = resolve(self.layer_map, student, rows, teacher)
        count = len(decoder_layers(student.model)) if self.cross_attention else 0
        cross_map = map_layers(self.decoder_map, count, teacher.decoder_layers) if count else ()
        return TinyBertLoss(
            self,
            student.task,
            teacher.read(rows, self.wanted(layer_map, cross_map)),
            layer_map,
            cross_map,
            heads=(tuple(head_counts(student.model)), teacher.heads),
            biases=(partial(score_bias, student.model), teacher.score_bias),
            causal=is_causal(student.model),
            decoder_heads=own.heads,
            reads=self.wanted(range(len(layer_map)), range(len(cross_map))),
            projections=self.projections(own.hidden_size, teacher.hidden_size),
        )

    def wanted(self, layers: Iterable[int], decoder: Iterable[int] = ()) -> SignalSpec:
        """Return what is read of a network of which these layers, and these of its decoder, are compared."""
        chosen, crossed = tuple(sorted(set(layers))), tuple(sorted(set(decoder)))
        states = ((0,) if self.embeddings else ()) + (tuple(i + 1 for i in chosen) if self.hidden else ())
        scored = chosen if self.attention else ()
        return SignalSpec(states, scored, scored, (), "prediction" in self.stages, crossed, crossed)

    def projections(self, student: int, teacher: int) -> nn.ModuleList:
        """Return the maps between two widths: of the embeddings first and of the hidden states last."""
        if self.projection == "shared":
            return nn.ModuleList([Projection(student, teacher, bias=True, always=True)])
        return nn.ModuleList([Projection(student, teacher), Projection(student, teacher)])

    def without_teacher(self) -> Technique:
        """Return training on the labels as in the last stage, for the epochs of all stages."""
        blocks = self.trainings()
        epochs = sum(block.epochs for block in blocks)
        return LabelTraining.in_place_of(blocks[-1].model_copy(update={"epochs": epochs}))


Bias = Callable[[int, int], Tensor | None]
"""``bias(layer, length)``: what is added to the products of queries and keys, ``[heads, L, L]``; None for nothing."""


def _without_bias(_layer: int, _length: int) -> None:
    return None


@dataclass
class TinyBertLoss(Loss):
    """The loss of ``distill.tinybert`` over known rows.

    Attributes:
        config: Its stages and weights.
        spec: The task.
        reader: The teacher's outputs.
        layer_map: Teacher layer of every student layer.
        cross_map: The same of the two decoders; empty where their attention to the encoder is not compared.
        heads: Attention heads of every layer of the student, and of the teacher.
        biases: What a layer of the student, and of the teacher, adds to its scores for inputs of some length.
        causal: Whether a token sees itself and those before it alone.
        decoder_heads: Attention heads of every layer of the student's decoder.
        reads: What of the student is read.
        projections: Maps to the teacher's width, of the embeddings first and of the hidden states last.
    """

    config: TinyBertDistillation
    spec: TaskSpec
    reader: Reader
    layer_map: tuple[int, ...] = ()
    cross_map: tuple[int, ...] = ()
    heads: tuple[tuple[int, ...], int] = ((), 1)
    biases: tuple[Bias, Bias] = (_without_bias, _without_bias)
    causal: bool = False
    decoder_heads: int = 1
    reads: SignalSpec = NOTHING
    projections: nn.ModuleList = field(default_factory=nn.ModuleList)

    def __post_init__(self) -> None:
        """Have the projections trained; means over padding, as in the code, are those of a whole batch."""
        self.modules, self.whole_batch = self.projections, self.config.reduction == "code"

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Return over how many tokens, pairs of tokens, and rows of logits or labels the terms are means."""
        tokens = batch.mask.sum(dim=1)
        is_number = kind_of(self.spec.kind).number
        rows = task_count(self.spec, batch) if is_number else soft_count(self.spec, batch)
        whole, pairs = tokens.sum(), (tokens * (tokens + 1) // 2 if self.causal else tokens.square()).sum()
        found = {"embeddings": whole, "hidden": whole, "attention": pairs, "prediction": rows}
        return found | {"cross_attention": (self.written(batch).sum(dim=1) * tokens).sum()} if self.cross_map else found

    def written(self, batch: Batch) -> Tensor:
        """Return which tokens of the target are real, booleans ``[B, T]``."""
        return batch.targets["labels"] != IGNORED

    def __call__(self, student: Signals, batch: Batch) -> dict[str, Tensor]:
        """Return the terms of the stages; a term whose weight is 0 is left out."""
        teacher = self.reader(batch)
        terms: dict[str, Tensor] = {}
        if "intermediate" in self.config.stages:
            terms |= self.intermediate(student, teacher, batch.mask)
            if self.cross_map:
                terms["cross_attention"] = self.cross_attention(student, teacher, batch)
        if "prediction" in self.config.stages:
            terms["prediction"] = self.prediction(student, teacher, batch)
        return terms

    def intermediate(self, student: Signals, teacher: Signals, mask: Tensor) -> dict[str, Tensor]:
        """Return ``{"embeddings", "hidden", "attention"}``, the latter two summed over the student's layers."""
        config, pairs = self.config, list(enumerate(self.layer_map))
        losses = {
            "embeddings": [self.states(student, teacher, mask, 0, 0)] if config.embeddings else [],
            "hidden": [self.states(student, teacher, mask, i + 1, j + 1) for i, j in pairs] if config.hidden else [],
            "attention": [self.scores(student, teacher, mask, i, j) for i, j in pairs] if config.attention else [],
        }
        return {name: getattr(config, name) * torch.stack(found).sum() for name, found in losses.items() if found}

    def states(self, student: Signals, teacher: Signals, mask: Tensor, own: int, other: int) -> Tensor:
        """Return the distance of two hidden states, the student's mapped to the teacher's width."""
        mapped = self.projections[-1 if own else 0](student.hidden_states[own])
        return hidden_state_mse(mapped, teacher.hidden_states[other], mask, self.config.reduction)

    def scores(self, student: Signals, teacher: Signals, mask: Tensor, own: int, other: int) -> Tensor:
        """Return the distance of two layers' attention scores."""
        length = mask.shape[1]
        first = relation_scores(
            student.queries[own], student.keys[own], self.heads[0][own], self.biases[0](own, length)
        )
        second = relation_scores(
            teacher.queries[other], teacher.keys[other], self.heads[1], self.biases[1](other, length)
        )
        return attention_mse(*match_heads(first.float(), second.float()), mask, self.config.reduction, self.causal)

    def cross_attention(self, student: Signals, teacher: Signals, batch: Batch) -> Tensor:
        """Return the distance of the scores with which targets look at sources, summed over the student's layers."""
        heads, written = self.decoder_heads, self.written(batch)
        losses = []
        for own, other in enumerate(self.cross_map):
            first = relation_scores(student.cross_queries[own], student.cross_keys[own], heads)
            second = relation_scores(teacher.cross_queries[other], teacher.cross_keys[other], self.heads[1])
            matched = match_heads(first.float(), second.float())
            losses.append(attention_mse(*matched, batch.mask, self.config.reduction, queries=written))
        return self.config.cross_attention * torch.stack(losses).sum()

    def prediction(self, student: Signals, teacher: Signals, batch: Batch) -> Tensor:
        """Return the soft cross-entropy, the mean over the pairs of logits (two for qa, else one)."""
        logits = student.logits.float()
        if kind_of(self.spec.kind).number:
            return task_loss(self.spec, logits, batch)
        pairs = paired_logits(self.spec, logits, teacher.logits.float(), batch)
        loss = of_probabilities(self.spec, prediction_loss)
        losses = [loss(*pair, self.config.temperature, self.config.reduction) for pair in pairs]
        return torch.stack(losses).mean()


def hidden_state_mse(student: Tensor, teacher: Tensor, mask: Tensor, reduction: Reduction = "valid") -> Tensor:
    """Return the mean squared difference of hidden states or of embedding outputs (Jiao et al. 2020, arXiv 1909.10351).

    Args:
        student: ``[B, L, d]``; a student of another width is mapped to the teacher's first, by a ``Projection``.
        teacher: The same shape.
        mask: 1 for real tokens, ``[B, L]``.
        reduction: ``valid`` averages over real tokens; ``code`` over all, as the authors' code.

    Examples:
        >>> import torch
        >>> student, teacher = torch.zeros(1, 2, 4), torch.tensor([1.0, 3.0]).reshape(1, 2, 1).expand(1, 2, 4)
        >>> mask = torch.tensor([[1, 0]])
        >>> hidden_state_mse(student, teacher, mask).item(), hidden_state_mse(student, teacher, mask, "code").item()
        (1.0, 5.0)
    """
    if reduction == "valid":
        student, teacher = student[mask.bool()], teacher[mask.bool()]
    return F.mse_loss(student.float(), teacher.float())


def prediction_loss(
    student: Tensor, teacher: Tensor, temperature: float = 1.0, reduction: Reduction = "valid"
) -> Tensor:
    """Return the soft cross-entropy of logits ``[n, C]``: the mean over rows, with ``code`` over classes too."""
    loss = soft_cross_entropy(student, teacher, temperature)
    return loss if reduction == "valid" else loss / student.shape[-1]
