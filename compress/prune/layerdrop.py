"""LayerDrop: a model that is trained to do without any of its layers, and can then be pruned to any depth."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from compress.companion import Accompanied
from compress.objective import RecoveryTechnique
from compress.prune.depth import depth_table
from compress.prune.layers import LayerPruning, PickOrSearch
from compress.technique import Inputs, Need, Outcome
from compress.traits import Trait
from teachers.anatomy.parts import Route, layer_output, rerouted
from teachers.taskmodel import TaskModel


class LayerDrop(RecoveryTechnique):
    """Train with whole layers left out by chance, so that the model can be pruned to any depth afterwards.

    In every forward pass of the training, each layer is the identity with probability ``rate``: one draw for each
    layer and batch, and nothing is scaled. Whatever is answered or scored runs all layers. Then the model is cut, if
    ``count`` or ``keep`` says so.

    Attributes:
        rate: Probability that a layer is left out. Default 0.2, the paper's advice; 0.5 for very shallow results. For
            r of N layers the best is about ``1 - r / N``.
        keep: Layers that stay in the end; None leaves it to ``count``.
        count: How many layers stay in the end; without both, all do, and later steps can cut.
        pick: How ``count`` layers are chosen: see ``prune.layers``. Default ``stride``, the paper's "every other".
        training: How the model is trained.

    Needs:
        Training examples, and what the objective needs. With validation examples ``facts`` has ``depths``: the score
        of this one model cut to every depth, without further training.

    Reduces:
        Nothing by itself; what is cut lowers parameters, non-zeros, bytes and multiply-accumulates as ``prune.layers``
        does.

    Limits:
        The authors drop layers in pre-training and in fine-tuning; they note that a model which was pre-trained in the
        ordinary way gains little from it in fine-tuning alone. The paper fine-tunes a BERT again after it was cut: add
        a distillation step. Use a somewhat lower ordinary dropout. An objective cannot read queries, keys or values,
        which a layer that is left out has not.

    Source:
        Fan, Grave, Joulin 2020, arXiv 1909.11556.
    """

    name: ClassVar[str] = "prune.layerdrop"
    needs: ClassVar[frozenset[Need]] = frozenset({"train"})
    source: ClassVar[str] = "Fan, Grave, Joulin 2020, arXiv 1909.11556"

    rate: float = Field(default=0.2, ge=0, lt=1)
    keep: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    count: Annotated[int, Field(ge=1)] | None = None
    pick: PickOrSearch = "stride"

    @model_validator(mode="after")
    def _cut_is_valid(self) -> LayerDrop:
        LayerPruning(keep=self.keep, count=self.count, pick=self.pick)
        return self

    @property
    def cut(self) -> LayerPruning | None:
        """What is done after the training."""
        if self.keep is None and self.count is None:
            return None
        return LayerPruning(keep=self.keep, count=self.count, pick=self.pick)

    def needed(self) -> frozenset[Need]:
        """Return what training and cutting need."""
        return super().needed() | (frozenset[Need]() if self.cut is None else self.cut.needed())

    def removed(self) -> frozenset[Trait]:
        """Return what the cut takes away."""
        return frozenset() if self.cut is None else self.cut.removed()

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse what the objective and the cut refuse."""
        cut = [] if self.cut is None else self.cut.check(student, inputs)
        return super().check(student, inputs) + [f"{self.name}: {problem}" for problem in cut]

    def apply(self, student: TaskModel, inputs: Inputs, generator: torch.Generator) -> Outcome:
        """Train, score every depth, cut."""
        objective = Accompanied(self.make_objective(inputs), nn.Module(), passes_by=self.name)
        with rerouted(student.model, dropping(student.model, self.rate)):
            history = self.train(student, inputs, objective, generator)
        facts: dict[str, Any] = {"depths": depth_table(student, inputs.validation)}
        if self.cut is not None:
            outcome = self.cut.apply(student, inputs, generator)
            student = outcome.model
            facts |= outcome.facts
        return Outcome(student, {**facts, "history": history})


def dropping(network: Any, rate: float) -> Route:
    """Return what makes every layer the identity with probability ``rate`` while the network is in training mode.

    One number of torch's global generator is drawn for each layer and forward pass.
    """

    def route(index: int, own: Any, hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        del index
        if network.training and torch.rand(()).item() < rate:
            return layer_output(network, hidden)
        return own(hidden, *args, **kwargs)

    return route
