"""FastBERT: classifiers after every layer learn from the last one, and easy inputs leave early."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from compress.distill.components.distillation_losses import kl_divergence
from compress.distill.components.exit_speed import effect, fastest, held_out
from compress.technique import Inputs, Measure, Need, Outcome, TrainedTechnique
from eval.kinds.kind_registry import kind_of
from eval.task import Examples
from teachers.anatomy.encoder import is_causal, layer_count
from teachers.data.encoded_dataset import Batch, EncodedDataset
from teachers.losses.loss import Loss, Objective
from teachers.signals.hooks import Signals
from teachers.taskmodel import TaskModel
from teachers.training.config import Training

if TYPE_CHECKING:
    from eval.task import TaskSpec

logger = logging.getLogger("compress.distill.early_exit")

COUNTED = 1024
"""Examples on which a fixed speed is measured: the first of the validation examples, or of the training examples."""
TRAINING_SPEED = 0.5
"""Speed of the scores after each epoch while another one is still to be chosen."""


class EarlyExit(TrainedTechnique):
    """Put a small classifier after every layer, train it on the last one's answers, and let easy inputs leave early.

    ``loss = sum over branches of mean over the batch of KL(p ‖ p_i)``, p the probabilities of the model's own last
    classifier, p_i those of branch i, without temperature and without labels. The model itself is frozen and runs
    without dropout, so that its last answer stays what it was, bit for bit. A branch: dense to ``branch_size``, tanh,
    self-attention, first token, dense, tanh, classes.

    An input leaves at the first branch with ``u <= speed``, where ``u = -sum p_i log p_i / log C`` is its uncertainty,
    0 to 1. It is decided for each input: those that leave are taken out of the batch. ``speed`` can be changed later:
    ``model.model.config.speed`` of a loaded model, ``Runtime(folder, speed=0.3)`` of an export.

    What a speed saves and costs depends on the task: the same one may leave after half of the layers on two classes
    and after the first on six. ``auto`` finds it when the branches are trained: the highest of 0.01, 0.02, … 1 up to
    which none loses more than ``tolerance`` of the metric against all layers, on examples that nothing was learned
    from and nothing is reported on: those that also choose the best epoch, or, where there are none, a tenth of the
    training examples, 2,048 at most, which the branches do not learn from. A fixed speed that loses more than that is
    told as a warning.

    Attributes:
        speed: Uncertainty up to which an input leaves; 0 runs every layer, ``auto`` chooses. Default 0.5, as in the
            paper's tables.
        tolerance: Score that ``auto`` may lose against all layers, in units of the task's metric. Default 0.005.
        exits: Layers after which a branch sits, without the last; every layer by default.
        branch_size: Width of a branch. Default 128 as in the paper.
        branch_heads: Attention heads of a branch. Default 2 as in the paper.
        training: Defaults as in the paper: 5 epochs of 32, rate 2e-5, a tenth of them to warm up; the last epoch is
            kept, since a better score at one speed says little about the branches.

    Needs:
        Training examples, whose labels are not read: text alone is enough. Where examples to choose or measure on have
        no labels, the answers of all layers stand for them.

    Reduces:
        Nothing that is counted once for a model: the branches come on top of its parameters and bytes, and an input
        that stays to the end costs more than before. What falls is the mean number of layers that run; it is recorded
        as ``mean_layers`` and logged when training ends, with the loss of score, and every result of the model has it
        as ``layers``.

    Limits:
        Classification of texts and pairs, two classes or more. The model has to be fine-tuned before: nothing can be
        trained afterwards, since branches belong to the very weights that they learned from. Inputs of one batch
        leave at different layers, so the gain is largest at batch 1. The paper writes the divergence the other way
        round, KL(p_i ‖ p); this is the direction of its authors' code. Standard transformers cannot load the result:
        ``compress.load`` does, and any runtime loads its ONNX export, which leaves early too.

    Source:
        Liu et al. 2020, arXiv 2004.02178.
    """

    name: ClassVar[str] = "distill.early_exit"
    version: ClassVar[int] = 2
    needs: ClassVar[frozenset[Need]] = frozenset({"train"})
    adds: ClassVar[frozenset[Measure]] = frozenset({"parameters", "nonzero", "bytes", "export_bytes"})
    freezes: ClassVar[bool] = True
    makes: ClassVar[str] = "a model with early exits"
    source: ClassVar[str] = "Liu et al. 2020, arXiv 2004.02178"

    speed: Annotated[float, Field(ge=0, le=1)] | Literal["auto"] = 0.5
    tolerance: float = Field(default=0.005, ge=0, lt=1)
    exits: tuple[int, ...] | None = None
    branch_size: int = Field(default=128, ge=1)
    branch_heads: int = Field(default=2, ge=1)
    training: Training = Training(epochs=5, learning_rate=2e-5, batch_size=32, warmup_steps=0.1, keep="last")

    @model_validator(mode="after")
    def _tolerance_of_a_choice(self) -> EarlyExit:
        if self.speed != "auto" and self.tolerance != type(self).model_fields["tolerance"].default:
            raise ValueError(f"tolerance is for speed: auto, and speed is {self.speed}; leave one of them out")
        return self

    @property
    def chooses(self) -> bool:
        """Whether the speed is chosen."""
        return self.speed == "auto"

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse other tasks than classification, exits that the model does not have, and heads that do not fit."""
        del inputs
        task, last, found = student.task, layer_count(student.model) - 1, []
        if not kind_of(task.kind).one_label or len(task.labels) < 2:
            found.append(f"{self.name}: needs a classification task of two classes or more, this one is {task.kind}")
        if is_causal(student.model):
            family = student.model.config.model_type
            found.append(f"{self.name}: its branches read the first token, which in {family} sees none of the others")
        exits = self._exits(student)
        if not exits or list(exits) != sorted(set(exits)) or exits[0] < 0 or exits[-1] >= last:
            given = f"exits {list(exits)}: " if self.exits is not None else ""
            allowed = f"ascending layers from 0 to {last - 1}, each once" if last > 0 else "a model of 2 layers or more"
            found.append(f"{self.name}: {given}needs {allowed}")
        if self.branch_size % self.branch_heads:
            found.append(f"{self.name}: branch_heads {self.branch_heads} must divide branch_size {self.branch_size}")
        return found

    def apply(self, student: TaskModel, inputs: Inputs, generator: torch.Generator) -> Outcome:
        """Add the branches, train them, choose the speed if it is ``auto``, and measure what it saves and costs."""
        from compress.architectures.early_exit_network import EarlyExitForSequenceClassification

        shape = {
            "exits": list(self._exits(student)),
            "branch_size": self.branch_size,
            "branch_heads": self.branch_heads,
            "first": -1 if student.encoder.settings.pad_side == "left" else 0,
            "speed": TRAINING_SPEED if self.speed == "auto" else self.speed,
        }
        train, measured = self._examples(inputs, generator.initial_seed())
        changed = replace(student, model=EarlyExitForSequenceClassification.around(student.model, **shape))
        changed.model.inner.requires_grad_(False)
        given = replace(inputs, train=labelled(train, student.task))
        history = self.train(changed, given, SelfDistillation(), generator)
        if self.speed == "auto":
            shape["speed"] = changed.model.config.speed = fastest(changed, measured, self.tolerance)
        facts = {**shape, **effect(changed, measured)}
        self._report(facts, student)
        return Outcome(changed, {"history": history, **facts})

    def _examples(self, inputs: Inputs, seed: int) -> tuple[Examples, Examples]:
        """Return what the branches learn from, and what the speed is chosen on, or a fixed one measured."""
        train = inputs.train or Examples(())
        if self.speed != "auto":
            return train, (inputs.validation or train)[:COUNTED]
        return (train, inputs.validation) if inputs.validation else held_out(train, seed)

    def _report(self, facts: Mapping[str, Any], student: TaskModel) -> None:
        """Say at once what the speed saves and costs."""
        logger.info(
            "%s: at speed %g %.2f of %d layers run on average, %s %+.4f against all of them, on %s",
            *(self.name, facts["speed"], facts["mean_layers"], layer_count(student.model)),
            *(student.task.metric, 0.0 - facts["score_loss"], facts["measured_on"]),
        )
        if self.speed == "auto" and not facts["speed"]:
            logger.warning(
                "%s: every speed loses more than the tolerance of %g, so all layers run; train the branches longer, "
                "or raise the tolerance",
                *(self.name, self.tolerance),
            )
        if self.speed != "auto" and facts["score_loss"] > self.tolerance:
            logger.warning(
                "%s: a speed of %g loses %.4f of %s on this task; speed: auto chooses one that loses at most its "
                "tolerance, %g",
                *(self.name, facts["speed"], facts["score_loss"], student.task.metric, self.tolerance),
            )

    def _exits(self, student: TaskModel) -> tuple[int, ...]:
        return tuple(range(layer_count(student.model) - 1)) if self.exits is None else self.exits


@dataclass(frozen=True)
class SelfDistillation(Objective):
    """Every branch follows the last classifier of its own network."""

    def bind(self, student: TaskModel, rows: EncodedDataset) -> ExitLoss:
        """Return the loss; there is nothing to prepare."""
        del student, rows
        return ExitLoss()


class ExitLoss(Loss):
    """The loss of ``distill.early_exit``."""

    def __call__(self, student: Signals, batch: Batch) -> dict[str, Tensor]:
        """Return ``{"exits": …}``."""
        del batch
        if student.exit_logits is None:
            raise TypeError("a network without exits was given to the loss of exits")
        return {"exits": early_exit_kl(student.exit_logits, student.logits)}


def early_exit_kl(exits: Tensor, last: Tensor) -> Tensor:
    """Return ``sum over branches of mean over rows of KL(softmax(last) ‖ softmax(exit))``; 0 for equal logits.

    Liu et al. 2020, arXiv 2004.02178 (FastBERT), in the direction of its authors' code.

    Args:
        exits: Logits of the branches ``[B, exits, C]``.
        last: Logits of the last classifier ``[B, C]``; they are learned from, not changed.

    Examples:
        >>> import torch
        >>> last = torch.tensor([[2.0, 0.0]])
        >>> early_exit_kl(last[:, None].expand(1, 3, 2), last).item()
        0.0
    """
    last = last.detach().float()
    return torch.stack([kl_divergence(logits.float(), last) for logits in exits.unbind(dim=1)]).sum()


def labelled(examples: Examples, task: TaskSpec) -> Examples:
    """Return the examples, any without a label with the first one: the loop encodes labels, and no loss reads them."""
    if all("label" in example for example in examples):
        return examples
    filled: list[Mapping[str, Any]] = [{"label": task.labels[0], **example} for example in examples]
    return Examples(filled, examples.name, examples.skipped)
