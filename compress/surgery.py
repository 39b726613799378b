"""Techniques that change a model in one stroke, then recovery fine-tuning on request, with any objective."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from pydantic import model_validator

from compress.objective import RecoveryTechnique
from compress.technique import Inputs, Need, Outcome
from teachers.renamed import RenamedFields

if TYPE_CHECKING:
    import torch

    from teachers.losses.loss import Objective
    from teachers.taskmodel import TaskModel
    from teachers.training.config import Training


class Surgery(RenamedFields, RecoveryTechnique):
    """Base of the techniques that cut, share or factorise weights.

    Attributes:
        recover: Whether the changed model is trained with the objective; without it nothing is learned.
    """

    renamed: ClassVar[Mapping[str, str]] = MappingProxyType({"heal": "recover"})

    recover: bool = True

    @model_validator(mode="after")
    def _an_objective_recovers(self) -> Surgery:
        if not self.recover and self.objective is not None:
            raise ValueError("an objective is for recovery fine-tuning; leave it out, or write recover: true")
        return self

    def needed(self) -> frozenset[Need]:
        """Return what the change needs, and what recovery fine-tuning needs."""
        return super().needed() | (frozenset[Need]({"train"}) if self.recover else frozenset())

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Return what makes recovery fine-tuning impossible on this model."""
        return super().check(student, inputs) if self.recover else []

    def trainings(self) -> tuple[Training, ...]:
        """Return the training block if it is used."""
        return super().trainings() if self.recover else ()

    def change(self, student: TaskModel, inputs: Inputs, generator: torch.Generator) -> Outcome:
        """Return the changed model before recovery fine-tuning; ``student`` may be changed in place."""
        raise NotImplementedError(f"{type(self).__name__} does not implement change")

    def apply(self, student: TaskModel, inputs: Inputs, generator: torch.Generator) -> Outcome:
        """Change the model, then train it."""
        outcome = self.change(student, inputs, generator)
        if self.recover:
            objective: Objective = self.make_objective(inputs)
            outcome.facts["history"] = self.train(outcome.model, inputs, objective, generator)
        return outcome
