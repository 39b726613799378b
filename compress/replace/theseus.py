"""BERT-of-Theseus: new layers take the places of groups of old ones, by chance at first, for good in the end."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from compress.companion import Accompanied
from compress.objective import RecoveryTechnique
from compress.student.layer_choice import Pick, choose_layers
from compress.technique import Inputs, Measure, Need, Outcome
from compress.traits import Trait
from eval.errors import UserError
from teachers.anatomy.encoder import layer_count, layers
from teachers.anatomy.layer_changes import copy_layer, replace_layers
from teachers.anatomy.parts import layer_differences, rerouted
from teachers.taskmodel import TaskModel
from teachers.training.config import Training


class Theseus(RecoveryTechnique):
    """Replace groups of layers by one layer each, which learns its part among the old ones.

    Module i is a group of the model's own layers (predecessor) or one new layer (successor):
    ``y_{i+1} = r · scc_i(y_i) + (1 - r) · prd_i(y_i)`` with ``r ~ Bernoulli(p)``, one draw for each module and forward
    pass. ``linear``: ``p_t = min(1, slope · t + base)``; ``constant``: p is ``rate`` at first, then 1. Once p is 1 the
    successor is fine-tuned alone. Only its layers are trained; embeddings, pooler and head stay bit for bit, and so do
    the old layers, which then go. Whatever is answered or scored takes the successor alone. Dropout stays on in both.

    Attributes:
        count: New layers; half of the old ones if nothing is said.
        groups: How many old layers each new one replaces, such as [2, 2, 2]; as even as possible if nothing is said.
        pick: Which layers the new ones start as copies of. Default ``first``, the best in the paper.
        start: A model folder or hub name whose layers those are: the paper copies the pre-trained model that the
            predecessor was fine-tuned from. None takes the predecessor's own, as the authors' code does.
        schedule: ``linear``, the paper's curriculum, or ``constant``.
        base: p of ``linear`` before the first optimizer step. Default 0.3 as in the authors' example. With 1 nothing is
            ever replaced: the fine-tuning of the same layers from the same start, which is the control.
        slope: How much p of ``linear`` rises with each optimizer step, 0.0006 in the authors' example; None lets it
            reach 1 after ``replacing`` of all steps.
        rate: p of ``constant``. Default 0.5 as in the paper; 0.5 to 0.7 works.
        replacing: Part of all steps in which p is below 1; the rest is the fine-tuning of the successor. The authors
            count steps (2,500 of ``constant``); here it is a half, whatever the size of the data.
        training: Defaults as in the authors' example: 15 epochs of 32, rate 2e-5, no warm-up but p's own.

    Needs:
        Training examples, and what the objective needs: the labels' own loss as in the paper, or any distillation.

    Reduces:
        Parameters, non-zeros, bytes, multiply-accumulates. The result is a standard model with fewer layers.

    Limits:
        Old and new layers have the same shape. Not for ALBERT, whose layers are one, for ModernBERT, whose layers are
        of two kinds, and for DeBERTa with a convolution after its first layer. An objective cannot read queries, keys
        or values, which a module that runs its old layers has not. Of the several processes of a multi-GPU run each
        draws its own path.

    Source:
        Xu, Zhou, Ge, Wei, Zhou 2020, arXiv 2002.02925.
    """

    name: ClassVar[str] = "replace.theseus"
    needs: ClassVar[frozenset[Need]] = frozenset({"train"})
    reduces: ClassVar[frozenset[Measure]] = frozenset({"parameters", "nonzero", "bytes", "export_bytes", "macs"})
    removes: ClassVar[frozenset[Trait]] = frozenset({"all_layers"})
    source: ClassVar[str] = "Xu, Zhou, Ge, Wei, Zhou 2020, arXiv 2002.02925"

    count: int | None = Field(default=None, ge=1)
    groups: tuple[Annotated[int, Field(ge=1)], ...] | None = Field(default=None, min_length=1)
    pick: Pick = "first"
    start: str | None = Field(default=None, min_length=1)
    schedule: Literal["linear", "constant"] = "linear"
    base: float = Field(default=0.3, gt=0, le=1)
    slope: float | None = Field(default=None, gt=0)
    rate: float = Field(default=0.5, gt=0, le=1)
    replacing: float = Field(default=0.5, gt=0, le=1)
    training: Training = Training(epochs=15, learning_rate=2e-5, batch_size=32, warmup_steps=0.0)

    @model_validator(mode="after")
    def _one_choice(self) -> Theseus:
        if self.count is not None and self.groups is not None and self.count != len(self.groups):
            raise ValueError(
                f"groups lists {len(self.groups)} new layers, count says {self.count}; leave one of them out"
            )
        return self

    def reads(self) -> tuple[Path, ...]:
        """Return the weights of a local ``start``."""
        return tuple(sorted(Path(self.start).glob("*.safetensors"))) if self.start is not None else ()

    def required(self) -> Mapping[Trait, str]:
        """Return layers without zeros if the new ones start from other weights."""
        reason = "the new layers start from weights that are not pruned; put it before"
        return {"unpruned_layers": reason} if self.start else {}

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse families whose layers cannot stand in for each other, and groups that are not all of the layers."""
        found, total = super().check(student, inputs), layer_count(student.model)
        if difference := layer_differences(student.model):
            found.append(f"{self.name}: layers cannot be replaced one by one here: {difference}")
        if self.groups is not None and sum(self.groups) != total:
            found.append(
                f"{self.name}: groups {list(self.groups)} are {sum(self.groups)} layers, the model has {total}"
            )
        elif (self.count or 1) > total:
            found.append(f"{self.name}: count {self.count} is more than the {total} layers that are replaced")
        return found

    def sizes(self, total: int) -> tuple[int, ...]:
        """Return how many of ``total`` old layers each new one replaces."""
        return self.groups or even_groups(total, self.count or -(-total // 2))

    def network_for(self, student: TaskModel, seed: int = 0) -> TaskModel:
        """Return the successor before its training."""
        del seed
        successor = replace(student, model=copy.deepcopy(student.model))
        replace_layers(successor.model, self._begun_from(layer_count(student.model)))
        return successor

    def apply(self, student: TaskModel, inputs: Inputs, generator: torch.Generator) -> Outcome:
        """Train the successor among the layers that it replaces."""
        old = layers(student.model)
        successor = self.network_for(student)
        if self.start is not None:
            self._begin(successor)
        successor.model.requires_grad_(False)
        for layer in layers(successor.model):
            layer.requires_grad_(True)
        replacement = Replacement(self, successor.model, old)
        objective = Accompanied(self.make_objective(inputs), replacement, passes_by=self.name)
        with rerouted(successor.model, replacement.route):
            history = self.train(successor, inputs, objective, generator)
        begun = list(self._begun_from(len(old)))
        return Outcome(successor, {"layers": begun, "groups": list(self.sizes(len(old))), "history": history})

    def _begun_from(self, total: int) -> tuple[int, ...]:
        """Return the layers, of ``total``, that the new ones start from."""
        return choose_layers(total, len(self.sizes(total)), self.pick)

    def _begin(self, successor: TaskModel) -> None:
        from compress.artifact.artifact import load_model

        given = load_model(str(self.start), successor.task).model
        own = layers(successor.model)
        if layer_count(given) < len(own):
            raise UserError(f"{self.start}: has {layer_count(given)} layers, and {len(own)} are to start from them")
        source = layers(given)
        for place, layer in zip(choose_layers(len(source), len(own), self.pick), own, strict=True):
            copy_layer(given, source[place], successor.model, layer)

    def chance(self, step: int, total: int) -> float:
        """Return p before update ``step`` of ``total``."""
        last = math.ceil(self.replacing * total)
        if self.schedule == "constant":
            return self.rate if step < last else 1.0
        slope = (1 - self.base) / last if self.slope is None else self.slope
        return linear_chance(step, slope, self.base) if self.slope is not None or step < last else 1.0


class Replacement(nn.Module):
    """Decides in every forward pass of a training which modules are the new ones.

    Args:
        config: The schedule.
        successor: The network with the new layers.
        predecessor: The old layers; they are not trained.
    """

    def __init__(self, config: Theseus, successor: Any, predecessor: list[nn.Module]) -> None:
        super().__init__()
        self.config, self.successor, self.chance = config, [successor], 1.0
        self.anchor = torch.zeros((), requires_grad=True)
        rest = iter(predecessor)
        # Plain lists: the successor is trained elsewhere, and old layers have no place in a checkpoint.
        self.modules_of = [[next(rest) for _ in range(size)] for size in config.sizes(len(predecessor))]
        for layer in predecessor:
            layer.train().requires_grad_(False)

    def at_step(self, step: int, total: int) -> bool:
        """Set p; return whether only the successor is left."""
        self.chance = self.config.chance(step, total)
        return self.chance >= 1 or step >= total

    def route(self, index: int, own: Any, hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Return what module ``index`` makes of the hidden states: the new layer, or by chance the old ones."""
        if not self.successor[0].training or torch.rand(()).item() < self.chance:
            return own(hidden, *args, **kwargs)
        output: Any = hidden
        for layer in self.modules_of[index]:
            states = output[0] if isinstance(output, tuple) else output
            output = layer.to(hidden.device)(states, *args, **kwargs)
        return self._anchored(output) if index == len(self.modules_of) - 1 else output

    def _anchored(self, output: Any) -> Any:
        """Return the same numbers with a gradient: a pass through old layers alone would leave none to the loss."""
        if isinstance(output, tuple):
            return (self._anchored(output[0]), *output[1:])
        return output + 0.0 * self.anchor.to(output.device)


def linear_chance(step: int, slope: float, base: float) -> float:
    """Return ``min(1, slope · step + base)``."""
    return min(1.0, slope * step + base)


def even_groups(total: int, count: int) -> tuple[int, ...]:
    """Return ``count`` sizes that differ by 1 at most and sum up to ``total``, the larger ones first."""
    return tuple(total // count + (i < total % count) for i in range(count))
