"""MobileBERT: a thin student takes over the teacher's layers one by one, then its predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (the field's own abbreviation)

from compress.distill.components.attention import Reduction, relation_rows, relation_scores
from compress.distill.components.distillation import Distillation, one_history
from compress.distill.components.distillation_losses import SoftLoss, soft_loss
from compress.distill.labels import LabelTraining
from compress.distill.logits import SoftTargets
from compress.technique import Inputs, Outcome, Technique
from compress.traits import Trait
from eval.errors import UserError
from teachers.anatomy.attention_heads import has_all_heads
from teachers.anatomy.encoder import family_of, has_plain_attention, is_causal, layer_count, layers, shape_of
from teachers.data.encoded_dataset import Batch, EncodedDataset
from teachers.losses.loss import Loss, Objective
from teachers.signals.hooks import Signals, SignalSpec
from teachers.signals.model_teacher import TeacherSource
from teachers.taskmodel import TaskModel
from teachers.training.config import Training

TRANSFER = 240_000 / 500_000
"""The paper's steps of the transfer, for one step of the pre-training distillation that follows."""

NORMALISED, MEANS, VARIANCES = 100.0, 5000.0, 5.0
"""The authors' weights of the three parts of ``normalised`` feature maps."""

FeatureMaps = Literal["mse", "normalised"]
Strategy = Literal["auxiliary", "joint", "progressive"]


class Stage(NamedTuple):
    """One training of several.

    Attributes:
        name: Its name in checkpoints and history.
        layers: Layers whose feature maps and attention are transferred.
        predicts: Whether the predictions are trained.
    """

    name: str
    layers: tuple[int, ...]
    predicts: bool


class MobileBertDistillation(Distillation):
    """Transfer feature maps and attention layer by layer, then train the predictions.

    A layer of T tokens, N channels and A heads transfers
    ``transfer_l = feature_weight · 1/(T N) Σ (H_T - H_S)² + attention_weight · 1/(T A) Σ KL(a_T ‖ a_S)``, where ``a``
    are softmaxed rows of attention scores. Its predictions learn from ``PD = (1 - alpha) · hard + alpha · soft``:
    ``hard`` is the masked-language loss on unlabelled text and the task's own loss otherwise, ``soft`` is
    ``KL(teacher ‖ student)`` of the logits, on unlabelled text at masked places. The strategies are

    - ``auxiliary``: one stage, ``PD + Σ transfer_l``;
    - ``joint``: first ``Σ transfer_l``, then ``PD``;
    - ``progressive``: first each ``transfer_l`` alone, from the lowest layer up, then ``PD``. Only layer l is trained
      then (with the first layer, everything outside of the layers), so all that lies below stays as it is.

    The authors' student takes embeddings and head from the teacher and has new layers: ``student: {init: embeddings}``.

    Attributes:
        strategy: Order of the losses. Default ``progressive``, the paper's best; only ``auxiliary`` is one loss, which
            can be a term of an ``objective``.
        feature_weight: Weight of the feature maps. Default 1, the paper's.
        attention_weight: Weight of the attention. Default 1, likewise.
        alpha: Weight of the soft predictions, 0 to 1; the paper's alpha is ``1 - alpha``. Default 0.5, the paper's.
        feature_maps: ``mse`` is the paper's formula. ``normalised`` is that of the authors' code: 100 times the squared
            difference after a layer norm without parameters, 5000 times that of the tokens' means, and 5 times the
            absolute difference of their variances.
        reduction: ``valid`` averages over real tokens and adds up layers. ``code`` does as the authors' code: padding
            counts as well (with zeros, where the teacher's outputs are read from disk), and the sum is divided by the
            number of layers.
        transfer_epochs: Epochs of the stages before ``PD``, all together. Default none: 0.48 of ``training.epochs``,
            as 240,000 and 500,000 steps in the paper.
        training: Of ``PD``; the stages before it differ in their epochs alone, and ``max_steps`` bounds each stage.
            Defaults chosen for AdamW on 32 sentences (the paper: LAMB at 1.5e-3 on 2,048); warm-up 2% as in the paper.

    Needs:
        Training examples and a teacher with the student's labels, tokenizer, hidden size and depth.

    Reduces:
        Nothing by itself; it recovers a student with thinner layers.

    Limits:
        Heads must be as many on both sides, and families whose attention is more than products of queries and keys
        (XLNet, DeBERTa, ModernBERT, MPNet) take ``attention_weight: 0``. Layers that share weights cannot be trained
        one by one. The authors' code trains lower layers at a tenth of the rate; here they are frozen, as in the paper.
        There embeddings stay as they were copied, here the first layer's stage trains them. Next sentences are not
        predicted.

    Source:
        Sun, Yu, Song, Liu, Yang, Zhou 2020, arXiv 2004.02984.
    """

    name: ClassVar[str] = "distill.mobilebert"
    requires: ClassVar[Mapping[Trait, str]] = {
        "all_layers": "every layer follows the teacher's, so they must be as many; put it before",
        "all_heads": "every head follows the teacher's, so they must be as many; put it before",
        "unshared_layers": (
            "layers that share weights cannot be trained one by one; take strategy: joint, or put it before"
        ),
    }
    source: ClassVar[str] = "Sun, Yu, Song, Liu, Yang, Zhou 2020, arXiv 2004.02984"

    strategy: Strategy = "progressive"
    feature_weight: float = Field(default=1.0, ge=0)
    attention_weight: float = Field(default=1.0, ge=0)
    alpha: float = Field(default=0.5, ge=0, le=1)
    feature_maps: FeatureMaps = "mse"
    reduction: Reduction = "valid"
    transfer_epochs: float | None = Field(default=None, gt=0)
    training: Training = Training(epochs=3, learning_rate=5e-4, warmup_steps=0.02)

    @model_validator(mode="after")
    def _transfers(self) -> MobileBertDistillation:
        if not self.feature_weight and not self.attention_weight:
            raise ValueError(
                "feature_weight and attention_weight are both 0, so nothing of the layers is transferred; "
                "distill.logits trains predictions alone"
            )
        return self

    def required(self) -> Mapping[Trait, str]:
        """Return as many layers and heads as the teacher's, and layers that can be trained one by one if they are."""
        one_by_one = self.strategy == "progressive"
        return {trait: why for trait, why in self.requires.items() if one_by_one or trait != "unshared_layers"}

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse a teacher of another width, depth or number of heads, and attention that cannot be compared."""
        if inputs.teacher is None:
            return []
        return [f"{self.name}: {problem}" for problem in self._problems(student, inputs.teacher)]

    def _problems(self, student: TaskModel, teacher: TeacherSource) -> Iterator[str]:
        own, family = shape_of(student.model.config), family_of(student.model).model_type
        if own.hidden_size != teacher.hidden_size:
            yield (
                f"hidden sizes must be equal, the student has {own.hidden_size} and the teacher {teacher.hidden_size}; "
                "make it thinner inside (family: mobilebert), or use distill.tinybert, which takes any width"
            )
        if own.layers != teacher.layers:
            yield (
                f"layers must be as many, the student has {own.layers} and the teacher {teacher.layers}; "
                f"give it layers: {teacher.layers} and make them thin, or use distill.tinybert, which maps layers"
            )
        if self.attention_weight and own.heads != teacher.heads:
            yield (
                f"heads must be as many, the student has {own.heads} and the teacher {teacher.heads}; "
                f"give the student heads: {teacher.heads}, or set attention_weight: 0"
            )
        if self.attention_weight and not (has_plain_attention(student.model) and teacher.plain_attention):
            odd = "teacher" if has_plain_attention(student.model) else f"student ({family})"
            yield (
                f"the attention of the {odd} is more than products of queries and keys, so it cannot be compared; "
                "set attention_weight: 0"
            )
        weights = [id(weight) for layer in layers(student.model) for weight in layer.parameters()]
        if self.strategy == "progressive" and len(set(weights)) < len(weights):
            yield f"layers of this {family} share weights, so they cannot be trained one by one; set strategy: joint"

    def apply(self, student: TaskModel, inputs: Inputs, generator: torch.Generator) -> Outcome:
        """Train ``student`` in place, stage by stage."""
        if found := self.check(student, inputs):  # an earlier step may have changed the student's shape
            raise UserError(*found)
        teacher, count = self.make_objective(inputs).teacher, layer_count(student.model)
        parts = count if self.strategy == "progressive" else 1
        histories: dict[str, list[dict[str, Any]]] = {}
        for number, stage in enumerate(stages(self.strategy, count)):
            seen, training = inputs, self.training
            if not stage.predicts:
                _train_only(student.model, stage.layers)
                seen = replace(inputs, validation=None)  # a score means nothing before the predictions are trained
                training = training.model_copy(update={"epochs": self._transfer_epochs() / parts})
            histories[stage.name] = self.train(
                student,
                seen,
                StageObjective(self, stage, teacher),
                torch.Generator().manual_seed(generator.initial_seed() + number),  # other texts first, other masks
                training=training,
                stage=stage.name,
            )
        return Outcome(student, facts={"history": one_history(histories)})

    def bind(self, student: TaskModel, rows: EncodedDataset, teacher: TeacherSource) -> StageLoss:
        """Return the loss of all layers and predictions together."""
        (stage,) = stages("auxiliary", layer_count(student.model))
        return StageObjective(self, stage, teacher).bind(student, rows)

    def term_problem(self) -> str:
        """Refuse the strategies of several stages as a term."""
        several = f"strategy {self.strategy} trains in several stages; set strategy: auxiliary, which is one loss"
        return "" if self.strategy == "auxiliary" else several

    def trainings(self) -> tuple[Training, ...]:
        """Return the training block of all stages of the transfer together, and that of the predictions."""
        if self.strategy == "auxiliary":
            return (self.training,)
        return self.training.model_copy(update={"epochs": self._transfer_epochs()}), self.training

    def with_trainings(self, change: Callable[[Training], Training]) -> Self:
        """Return the same technique with its training block changed, and the epochs of the transfer likewise."""
        changed = super().with_trainings(change)
        if self.transfer_epochs is None:
            return changed
        transfer = change(self.training.model_copy(update={"epochs": self.transfer_epochs}))
        return changed.model_copy(update={"transfer_epochs": transfer.epochs})

    def without_teacher(self) -> Technique:
        """Return training on the labels for as many epochs as all stages have together."""
        epochs = sum(training.epochs for training in self.trainings())
        return LabelTraining.in_place_of(self.training.model_copy(update={"epochs": epochs}))

    def _transfer_epochs(self) -> float:
        return TRANSFER * self.training.epochs if self.transfer_epochs is None else self.transfer_epochs


def stages(strategy: Strategy, count: int) -> tuple[Stage, ...]:
    """Return the stages of a strategy for a network of ``count`` layers."""
    every = tuple(range(count))
    if strategy == "auxiliary":
        return (Stage("all", every, True),)
    transfer = [Stage("layers", every, False)]
    if strategy == "progressive":
        transfer = [Stage(f"layer-{i}", (i,), False) for i in every]
    return (*transfer, Stage("predictions", (), True))


@dataclass(frozen=True)
class StageObjective(Objective):
    """What one stage minimises."""

    config: MobileBertDistillation
    stage: Stage
    teacher: TeacherSource

    def bind(self, student: TaskModel, rows: EncodedDataset) -> StageLoss:
        """Compute or find the teacher's outputs; those of all layers are kept together, once for all stages."""
        every = tuple(range(layer_count(student.model)))
        if self.config.attention_weight and not has_all_heads(student.model):
            raise UserError(
                f"{self.config.name}: heads must be as many in every layer as in the teacher's, and an earlier step "
                "took some of the student's away; set attention_weight: 0"
            )
        reader = self.teacher.read(rows, self.wanted(every if self.stage.layers else ()))
        soft = SoftTargets(student.task, reader, 1.0, self.config.alpha, _soft_loss(student), only_predicted=True)
        heads = (shape_of(student.model.config).heads, self.teacher.heads)
        causal = is_causal(student.model)
        share = 1 / len(every) if self.config.reduction == "code" else 1.0
        return StageLoss(self.config, self.stage, soft, heads, share, self.wanted(self.stage.layers), causal)

    def wanted(self, chosen: tuple[int, ...]) -> SignalSpec:
        """Return what is read of these layers, the same on both sides."""
        features = tuple(i + 1 for i in chosen) if self.config.feature_weight else ()
        attention = chosen if self.config.attention_weight else ()
        return SignalSpec(hidden_states=features, queries=attention, keys=attention, logits=self.stage.predicts)


@dataclass
class StageLoss(Loss):
    """The loss of one stage of ``distill.mobilebert`` over known rows.

    Attributes:
        config: Its weights.
        stage: What is transferred.
        soft: The predictions.
        heads: Of the student and of the teacher.
        share: What the transfer of each layer is multiplied by.
        reads: The student's signals.
        causal: Whether a token sees itself and those before it alone.
    """

    config: MobileBertDistillation
    stage: Stage
    soft: SoftTargets
    heads: tuple[int, int]
    share: float
    reads: SignalSpec
    causal: bool = False

    def __post_init__(self) -> None:
        """Means over padding, as in the code, are those of a whole batch."""
        self.whole_batch = self.config.reduction == "code"

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Return over how many tokens, rows of logits and labels the terms are means."""
        tokens = batch.mask.sum()
        return {**self.soft.counts(batch), "features": tokens, "attention": tokens}

    def __call__(self, student: Signals, batch: Batch) -> dict[str, Tensor]:
        """Return ``{"features", "attention", "soft", "task"}``; a term whose weight is 0 is left out."""
        config, teacher = self.config, self.soft.reader(batch)
        terms: dict[str, Tensor] = {}
        if self.reads.hidden_states:
            distances = [self.features(student, teacher, batch.mask, layer) for layer in self.stage.layers]
            terms["features"] = config.feature_weight * self.share * torch.stack(distances).sum()
        if self.reads.queries:
            distances = [self.attention(student, teacher, batch.mask, layer) for layer in self.stage.layers]
            terms["attention"] = config.attention_weight * self.share * torch.stack(distances).sum()
        return terms | (self.soft.terms(student, teacher, batch) if self.stage.predicts else {})

    def features(self, student: Signals, teacher: Signals, mask: Tensor, layer: int) -> Tensor:
        """Return the distance of the feature maps after one layer."""
        own, other = (signals.hidden_states[layer + 1].float() for signals in (student, teacher))
        return feature_map_distance(own, other, mask, self.config.feature_maps, self.config.reduction)

    def attention(self, student: Signals, teacher: Signals, mask: Tensor, layer: int) -> Tensor:
        """Return the divergence of the attention of one layer."""
        own, other = (
            relation_scores(signals.queries[layer].float(), signals.keys[layer].float(), heads)
            for signals, heads in zip((student, teacher), self.heads, strict=True)
        )
        return attention_kl(own, other, mask, self.config.reduction, self.causal)


def attention_kl(
    student: Tensor, teacher: Tensor, mask: Tensor, reduction: Reduction = "valid", causal: bool = False
) -> Tensor:
    """Return the mean over heads and queries of ``KL(softmax(teacher) ‖ softmax(student))`` over the keys.

    Sun et al. 2020, arXiv 2004.02984. Padded keys have no probability.

    Args:
        student: Attention scores before the softmax, ``[B, heads, L, L]``; ``relation_scores`` gives them.
        teacher: The same shape.
        mask: 1 for real tokens, ``[B, L]``.
        reduction: ``valid`` averages over real queries; ``code`` over all, as the authors' code.
        causal: Whether a token sees itself and those before it alone.

    Examples:
        >>> import torch
        >>> uniform, sharp = torch.zeros(1, 2, 2, 2), torch.tensor([[30.0, 0.0]]).expand(1, 2, 2, 2)
        >>> round(attention_kl(uniform, sharp, torch.ones(1, 2)).item(), 4)
        0.6931
    """
    return _mean(relation_rows(student, teacher, mask, causal).mean(dim=1), mask, reduction)


def feature_map_distance(
    student: Tensor, teacher: Tensor, mask: Tensor, kind: FeatureMaps = "mse", reduction: Reduction = "valid"
) -> Tensor:
    """Return the mean over tokens of how far their feature maps are apart (Sun et al. 2020, arXiv 2004.02984).

    Args:
        student: Hidden states ``[B, L, d]``.
        teacher: The same shape.
        mask: 1 for real tokens, ``[B, L]``.
        kind: ``mse`` for the mean squared difference, ``normalised`` for the weighted sum of the authors' code.
        reduction: ``valid`` averages over real tokens; ``code`` over all, as the authors' code.

    Examples:
        >>> import torch
        >>> feature_map_distance(torch.zeros(1, 2, 4), torch.ones(1, 2, 4), torch.tensor([[1, 0]])).item()
        1.0
    """
    if kind == "mse":
        return _mean((student - teacher).square().mean(dim=-1), mask, reduction)
    normal = [F.layer_norm(x, x.shape[-1:], eps=1e-12) for x in (student, teacher)]
    means = student.mean(dim=-1) - teacher.mean(dim=-1)
    variances = student.var(dim=-1, correction=0) - teacher.var(dim=-1, correction=0)
    squares = (normal[0] - normal[1]).square().mean(dim=-1)
    return _mean(NORMALISED * squares + MEANS * means.square() + VARIANCES * variances.abs(), mask, reduction)


def _mean(values: Tensor, mask: Tensor, reduction: Reduction) -> Tensor:
    """Average what each token has, ``[B, L]``, over real tokens or over all."""
    return values.mean() if reduction == "code" else values[mask.bool()].mean()


def _soft_loss(student: TaskModel) -> SoftLoss:
    return soft_loss(student.task, "kl")


def _train_only(model: Any, chosen: tuple[int, ...]) -> None:
    """Freeze everything but these layers and, with the first, what lies outside of the layers.

    The training loop makes all parameters trainable again when it ends.
    """
    every = layers(model)
    inside = {id(parameter) for layer in every for parameter in layer.parameters()}
    trained = {id(parameter) for i in chosen for parameter in every[i].parameters()}
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in trained or (0 in chosen and id(parameter) not in inside))
