"""Cross-view training: views of a part of a text learn what the model itself predicts from all of it."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator
from torch import Tensor, nn

from compress.distill.components.distillation_losses import SoftLoss, paired_logits, soft_count, soft_loss
from compress.distill.components.partial_views import (
    MASK_OF,
    OF_TEXTS,
    OF_WORDS,
    TextView,
    WordView,
    half_mean,
    read,
    restricted_states,
    unrestricted,
    word_places,
)
from compress.distill.labels import LabelTraining
from compress.technique import Inputs, Need, Technique, TrainedTechnique
from eval.kinds.kind_registry import kind_of
from eval.task import TaskSpec
from teachers.anatomy.encoder import layer_count, shape_of
from teachers.data.encoded_dataset import Batch, EncodedDataset
from teachers.losses.loss import Loss, Objective
from teachers.losses.task_loss import task_count, task_loss
from teachers.seeding import seeded
from teachers.signals.hooks import Signals, observe
from teachers.taskmodel import TaskModel, evaluating

View = Literal[WordView, TextView]


class CrossViewTraining(TrainedTechnique):
    """Train a model on its own predictions for text without labels, seen in part.

    ``loss = labels · hard + alpha · sum over views of KL(p(y | x) ‖ p_view(y | part of x))``. ``p`` is the model
    itself, without dropout and without gradient; each view is a small network ``U relu(W h + b)`` that reads states of
    the same encoder run under a mask, so that they have seen a part of the text alone. The views learn, and the encoder
    under them; the views are dropped afterwards, so the model keeps its shape. The views of a word, as in the paper:
    ``forward`` (up to the word), ``backward`` (from the word on), ``future`` (what stands before it, without it) and
    ``past`` (what stands after it). Those of a whole text are ours: ``first_half`` and ``second_half``.

    Attributes:
        alpha: Weight of each view. Default 1, as in the paper.
        labels: Weight of the labels' own loss, for the texts that have one; 0 leaves it out. Default 1.
        views: Which; by default all that the task has.
        layers: How many layers a view runs; by default half of them, rounded up. The paper's read the first of two
            LSTM layers.
        size: Channels of a view's hidden layer; the hidden size by default.

    Needs:
        Training examples, of which some may have no label: ``augment: {unlabelled: FILE}`` adds such text. No teacher.

    Reduces:
        Nothing.

    Limits:
        For tags, and for classes, labels and scores of single texts. An optimizer step takes about twice as long. The
        paper alternates batches with labels and without; here a batch holds both, and views learn from all of it.

    Source:
        Clark, Luong, Manning, Le 2018, arXiv 1809.08370.
    """

    name: ClassVar[str] = "distill.cross_view"
    needs: ClassVar[frozenset[Need]] = frozenset({"train"})
    is_objective: ClassVar[bool] = True
    source: ClassVar[str] = "Clark, Luong, Manning, Le 2018, arXiv 1809.08370"

    alpha: float = Field(default=1.0, gt=0)
    labels: float = Field(default=1.0, ge=0)
    views: Annotated[tuple[View, ...], Field(min_length=1)] | None = None
    layers: int | None = Field(default=None, ge=1)
    size: int | None = Field(default=None, ge=1, le=65536)

    @field_validator("views")
    @classmethod
    def _each_once(cls, views: tuple[View, ...] | None) -> tuple[View, ...] | None:
        if views is not None and len(set(views)) < len(views):
            raise ValueError(f"got {', '.join(views)}; name each view once")
        return views

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse tasks without views, views of another task, networks that no mask restricts, and too many layers."""
        del inputs
        allowed, count = possible_views(student.task), layer_count(student.model)
        found = []
        if not allowed:
            pair = " of pairs" if student.task.pair else ""
            found.append(
                f"{self.name}: is for tags, and for classes, labels and scores of single texts, and the task is "
                f"{student.task.kind}{pair}"
            )
        elif foreign := [view for view in self.views or () if view not in allowed]:
            found.append(f"{self.name}: views: {student.task.kind} has {', '.join(allowed)}, not {', '.join(foreign)}")
        if problem := unrestricted(student.model):
            found.append(f"{self.name}: cannot restrict this model: {problem}")
        if self.layers is not None and self.layers > count:
            found.append(f"{self.name}: layers: got {self.layers}, and the model has {count}")
        return found

    def make_objective(self, inputs: Inputs) -> CrossViewObjective:
        """Return the objective; it needs no input but the examples."""
        del inputs
        return CrossViewObjective(self)

    def without_teacher(self) -> Technique:
        """Return training on the labels, with the same training block: the baseline that it has to beat."""
        return LabelTraining.in_place_of(self.training)


def possible_views(spec: TaskSpec) -> tuple[View, ...]:
    """Return the views that a task has; none for one that cross-view training is not for."""
    kind = kind_of(spec.kind)
    if kind.head == "ForTokenClassification":
        return OF_WORDS
    single = kind.head == "ForSequenceClassification" and not (kind.joined or kind.vectors or spec.pair)
    return OF_TEXTS if single else ()


class CrossViewObjective(Objective):
    """``distill.cross_view`` as an objective, which learns from all examples.

    Args:
        config: Its fields.
    """

    def __init__(self, config: CrossViewTraining) -> None:
        self.config = config

    def bind(self, student: TaskModel, rows: EncodedDataset) -> CrossViewLoss:
        """Make the views' networks, from the seed of the rows."""
        config = self.config
        width = shape_of(student.model.config).hidden_size
        views = config.views or possible_views(student.task)
        with seeded(rows.seed):
            outputs = student.model.config.num_labels
            made = [prediction_module(width, config.size or width, outputs) for _ in views]
        depth = config.layers or (layer_count(student.model) + 1) // 2
        return CrossViewLoss(config, student, dict(zip(views, made, strict=True)), depth)


def prediction_module(width: int, size: int, outputs: int) -> nn.Sequential:
    """Return a view's network, ``U relu(W h + b) + c``: ``[..., width]`` to logits ``[..., outputs]``."""
    return nn.Sequential(nn.Linear(width, size), nn.ReLU(), nn.Linear(size, outputs))


class CrossViewLoss(Loss):
    """The loss of ``distill.cross_view`` over known rows.

    Args:
        config: Its weights.
        student: Whose encoder the views share.
        predictors: View -> its network.
        depth: Layers that a view runs.
    """

    def __init__(
        self, config: CrossViewTraining, student: TaskModel, predictors: dict[View, nn.Module], depth: int
    ) -> None:
        self.config, self.spec, self.network = config, student.task, student.model
        self.predictors, self.modules, self.depth = predictors, nn.ModuleList(predictors.values()), depth
        self.soft: SoftLoss = soft_loss(self.spec, "kl")

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Return over how many words or texts, and labels, the terms are means."""
        views = soft_count(self.spec, batch)
        return {**dict.fromkeys(self.predictors, views), "task": task_count(self.spec, batch)}

    def __call__(self, student: Signals, batch: Batch) -> dict[str, Tensor]:
        """Return a term for each view, and ``task``, weighted; labels whose weight is 0 are left out."""
        whole = self.whole(batch)
        terms = {}
        for view, logits in self.views(batch).items():
            ((own, other),) = paired_logits(self.spec, logits.float(), whole.float(), batch)
            terms[view] = self.config.alpha * self.soft(own, other, 1.0)
        if self.config.labels:
            terms["task"] = self.config.labels * task_loss(self.spec, student.logits, batch)
        return terms

    def whole(self, batch: Batch) -> Tensor:
        """Return the logits of the model that sees all of the text, without dropout and without gradient."""
        with evaluating(self.network):
            logits = observe(self.network, batch.inputs).logits
        return logits.clone()

    def views(self, batch: Batch) -> dict[str, Tensor]:
        """Return the logits of each view, in the shape of the model's."""
        kinds = tuple(dict.fromkeys(MASK_OF[view] for view in self.predictors))
        states = dict(zip(kinds, restricted_states(self.network, batch.inputs, kinds, self.depth), strict=True))
        return {view: own(self._read(view, states[MASK_OF[view]], batch)) for view, own in self.predictors.items()}

    def _read(self, view: View, states: Tensor, batch: Batch) -> Tensor:
        if view == "first_half" or view == "second_half":
            return half_mean(view, states, batch.mask)
        return read(states, word_places(view, batch.targets["words"], batch.mask))
