"""Techniques that change a model in one stroke, then heal it if wanted, with any objective."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import model_validator

from compress.objective import HealedTechnique
from compress.technique import Inputs, Need, Outcome

if TYPE_CHECKING:
    import torch

    from teachers.losses.loss import Objective
    from teachers.taskmodel import TaskModel
    from teachers.training.config import Training


class Surgery(HealedTechnique):
    """Base of the techniques that cut, share or factorise weights.

    Attributes:
        heal: Whether the changed model is trained with the objective; without it nothing is learned.
    """

    heal: bool = True

    @model_validator(mode="after")
    def _an_objective_heals(self) -> Surgery:
        if not self.heal and self.objective is not None:
            raise ValueError("an objective is for healing; leave it out, or write heal: true")
        return self

    def needed(self) -> frozenset[Need]:
        """Return what the change needs, and what healing needs."""
        return super().needed() | (frozenset[Need]({"train"}) if self.heal else frozenset())

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Return what makes healing impossible on this model, if it is healed."""
        return super().check(student, inputs) if self.heal else []

    def trainings(self) -> tuple[Training, ...]:
        """Return the training block if it is used."""
        return super().trainings() if self.heal else ()

    def change(self, student: TaskModel, inputs: Inputs, generator: torch.Generator) -> Outcome:
        """Return the changed model before it is healed; ``student`` may be changed in place."""
        raise NotImplementedError(f"{type(self).__name__} does not implement change")

    def apply(self, student: TaskModel, inputs: Inputs, generator: torch.Generator) -> Outcome:
        """Change the model, then train it."""
        outcome = self.change(student, inputs, generator)
        if self.heal:
            objective: Objective = self.make_objective(inputs)
            outcome.facts["history"] = self.train(outcome.model, inputs, objective, generator)
        return outcome
