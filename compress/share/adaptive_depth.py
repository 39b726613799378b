"""A Universal Transformer: one layer applied as often as a text needs, which is learned."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from compress.objective import RecoveryTechnique
from compress.share.layers import LayerSharing
from compress.technique import Inputs, Measure, Need, Outcome
from compress.traits import Trait
from eval.kinds.kind_registry import kind_of
from teachers.losses.loss import WrappedLoss, WrappedObjective
from teachers.training.config import Training

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from eval.task import Examples
    from teachers.data.encoded_dataset import Batch, EncodedDataset
    from teachers.losses.loss import Loss
    from teachers.signals.hooks import Signals
    from teachers.taskmodel import TaskModel

logger = logging.getLogger("compress.share.adaptive_depth")

HEAD = "AutoModelForSequenceClassification"
"""The head that reads a text as a whole."""
COUNTED = 1024
"""Examples on which the depth is measured: the first of the validation examples, or of the training examples."""


class AdaptiveDepth(RecoveryTechnique):
    """Let all layers be one, and learn after how many rounds of it a text has its answer.

    Adaptive computation time over the layers. After layer n a halting unit, ``h_n = sigmoid(w s_n + b)``, reads the
    state of the token that stands for the text. The text halts after ``N = min{n : h_1 + … + h_n >= 1 - epsilon}``
    layers, or after all of them. ``R = 1 - (h_1 + … + h_(N-1))`` is the remainder. The head reads ``sum over n of
    p_n s_n`` of the states of all tokens, with p_n = h_n before N, and R at N. Minimised is ``objective + ponder * mean
    over texts of (N + R)``, whose gradient is that of R alone. So the depth is learned with the weights, from whatever
    the objective says: with ``distill.logits`` from the teacher's soft targets.

    A model whose layers share their weights already (ALBERT, ``share.layers`` with one group) is taken as it is. In
    any other, all layers become one first, as ``share.layers`` does it.

    ``distill.early_exit`` leaves a finished model with classifiers of its own at each exit, by their uncertainty. Here
    one head reads one mean of states, nothing is frozen, and what decides is trained. A Universal Transformer halts
    every token by itself and copies its state from then on; it still runs until its last token has halted. A text of
    which one token is read gains nothing from that, so here the text halts as a whole, and everything after N is
    skipped. There is no embedding of the step either: trained layers have never seen one.

    Attributes:
        ponder: Weight of the ponder cost, Graves' tau; more of it halts earlier. Default 0.01, as in the authors' code
            of the Universal Transformer.
        epsilon: What may be missing of 1 where a text halts. Default 0.01 as in both papers. It can be changed later
            as the speed of early exits can: ``model.model.config.speed`` of a loaded model, ``Runtime(folder,
            speed=0.1)`` of an export; 0 runs every layer.
        start: What the halting unit says of every text at first. Default 0.1: a model of up to 10 layers starts with
            all of them.
        init: Where the weights of the one layer come from, as of ``share.layers``, if layers differ yet.
        training: Default: three epochs, rate 5e-5; the last epoch is kept, since the depth falls to the end.

    Needs:
        Training examples, and what the objective needs; calibration examples for ``init: least``.

    Reduces:
        Parameters, non-zeros and bytes, where layers were not shared before; the unit adds ``d + 1`` parameters. What
        else falls is the mean number of layers that run: it is recorded as ``mean_layers``, and every result of the
        model has it as ``layers``. Multiply-accumulates are counted for all layers.

    Limits:
        Classification and regression of texts and pairs, rankers among them. Not for decoders, whose first token sees
        no other. An objective may read logits alone. Every exit runs the head, and texts of one batch leave at
        different layers, so the gain is largest at batch 1. Nothing can be trained afterwards: without the ponder cost
        the halting unit would drift. Standard transformers cannot load the result: ``compress.load`` does, and any
        runtime loads its ONNX export, which skips layers too.

    Source:
        Graves 2016, arXiv 1603.08983; Dehghani et al. 2019, arXiv 1807.03819.
    """

    name: ClassVar[str] = "share.adaptive_depth"
    needs: ClassVar[frozenset[Need]] = frozenset({"train"})
    reduces: ClassVar[frozenset[Measure]] = LayerSharing.reduces
    adds: ClassVar[frozenset[Measure]] = LayerSharing.reduces  # the unit's, where layers were shared before
    freezes: ClassVar[bool] = True
    makes: ClassVar[str] = "a model with adaptive depth"
    requires: ClassVar[Mapping[Trait, str]] = LayerSharing.requires
    source: ClassVar[str] = "Graves 2016, arXiv 1603.08983; Dehghani et al. 2019, arXiv 1807.03819"

    ponder: float = Field(default=0.01, ge=0)
    epsilon: float = Field(default=0.01, gt=0, lt=1)
    start: float = Field(default=0.1, gt=0, lt=1)
    init: Literal["mean", "least"] | tuple[int, ...] = "mean"
    training: Training = Training(epochs=3, learning_rate=5e-5, keep="last")

    @property
    def sharing(self) -> LayerSharing:
        """What makes one layer of all."""
        return LayerSharing(init=self.init, recover=False)

    def needed(self) -> frozenset[Need]:
        """Return what the sharing needs, and what the objective needs."""
        return super().needed() | self.sharing.needed()

    def required(self) -> Mapping[Trait, str]:
        """Return what the sharing requires."""
        return self.sharing.required()

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse heads that read single tokens, decoders, layers that cannot be one, and objectives that read more."""
        from teachers.anatomy.encoder import is_causal, layer_count

        found, family = super().check(student, inputs), student.model.config.model_type
        if kind_of(student.task.kind).auto_class != HEAD:
            found.append(f"{self.name}: works in classification and regression; this task is {student.task.kind}")
        if is_causal(student.model):
            found.append(f"{self.name}: halts by the first token, which in {family} sees none of the others")
        if layer_count(student.model) < 2:
            found.append(f"{self.name}: needs a model of 2 layers or more")
        elif not is_one_layer(student.model):
            if family == "albert":
                groups = student.model.config.num_hidden_groups
                found.append(f"{self.name}: needs an albert of one group of layers, this one has {groups}")
            else:
                problems = self.sharing.check(student, inputs)
                found += [problem.replace(f"{self.sharing.name}:", f"{self.name}:") for problem in problems]
        elif "init" in self.model_fields_set:
            found.append(f"{self.name}: init is for layers that differ, and these share their weights; leave it out")
        return found + self.reads_logits_alone("the states are those of all layers")

    def apply(self, student: TaskModel, inputs: Inputs, generator: torch.Generator) -> Outcome:
        """Share the layers if they differ, add the halting unit, train, and measure the depth."""
        from compress.architectures.adaptive_depth_network import AdaptiveDepthForSequenceClassification
        from eval.task import Examples

        facts: dict[str, Any] = {}
        if not is_one_layer(student.model):
            shared = self.sharing.change(student, inputs, generator)
            student, facts["shared"] = shared.model, shared.facts
        first = -1 if student.encoder.settings.pad_side == "left" else 0
        network = AdaptiveDepthForSequenceClassification.around(
            student.model, start=self.start, first=first, speed=self.epsilon
        )
        changed = replace(student, model=network)
        objective = Pondering(self.make_objective(inputs), self.ponder)
        facts["history"] = self.train(changed, inputs, objective, generator)
        facts |= depth(changed, (inputs.validation or inputs.train or Examples(()))[:COUNTED])
        logger.info("%s: %s, of %s", self.name, self.note(facts), facts["measured_on"])
        return Outcome(changed, facts)

    @classmethod
    def note(cls, facts: Mapping[str, Any]) -> str:
        """Return how many layers run on average."""
        return (
            f"{facts['mean_layers']:.2f} of {facts['layers']} layers run on average" if "mean_layers" in facts else ""
        )


def is_one_layer(network: Any) -> bool:
    """Whether all layers of a network have the same weights, but for parts that some of them lack."""
    from teachers.anatomy.encoder import layers

    tensors = [{name: id(tensor) for name, tensor in layer.named_parameters()} for layer in layers(network)]
    known: dict[str, int] = {}
    return all(known.setdefault(name, own) == own for one in tensors for name, own in one.items())


def depth(model: TaskModel, examples: Examples) -> dict[str, Any]:
    """Return how deep texts go: ``mean_layers``, how many stop after which layer, and on which examples."""
    from eval.inference import predict
    from teachers.anatomy.encoder import layer_count

    found = [int(count) for count in predict(model, examples).layers or ()]
    return {
        "mean_layers": sum(found) / len(found),
        "layers": layer_count(model.model.inner),
        "texts_by_layers": {str(count): number for count, number in sorted(Counter(found).items())},
        "measured_on": f"{len(examples)} {examples.name} examples",
    }


@dataclass(frozen=True)
class Pondering(WrappedObjective):
    """An objective, and the price of layers.

    Attributes:
        objective: The objective.
        weight: Of the ponder cost.
    """

    weight: float

    def bind(self, student: TaskModel, rows: EncodedDataset) -> PonderLoss:
        """Bind the objective."""
        return PonderLoss(self.objective.bind(student, rows), self.weight)


class PonderLoss(WrappedLoss):
    """A loss and the mean ponder cost of the rows.

    Args:
        inner: The loss.
        weight: Of the ponder cost.
    """

    def __init__(self, inner: Loss, weight: float) -> None:
        super().__init__(inner)
        self.weight = weight

    def __call__(self, student: Signals, batch: Batch) -> dict[str, Tensor]:
        """Return the terms of the loss, and ``ponder``."""
        if student.ponder is None:
            raise TypeError("a network that does not halt by itself was given to the loss of halting")
        return {**self.inner(student, batch), "ponder": self.weight * student.ponder.float().mean()}
