"""A companion of a training: a module beside the network that follows its steps and may add terms to the loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from eval.errors import UserError
from teachers.losses.loss import WrappedLoss, WrappedObjective

if TYPE_CHECKING:
    from torch import Tensor

    from teachers.data.encoded_dataset import Batch, EncodedDataset
    from teachers.losses.loss import Loss
    from teachers.signals.hooks import Signals
    from teachers.taskmodel import TaskModel


@dataclass(frozen=True)
class Accompanied(WrappedObjective):
    """An objective, and a module that the training loop keeps beside the network as it keeps projections.

    The module may have ``at_step`` and ``rates`` (see ``teachers.training.scheduled_modules``), and
    ``terms() -> {name: tensor}``, which are added to those of the objective in every forward pass. It is thrown
    away after the training.

    Attributes:
        objective: What is minimised.
        companion: The module.
        passes_by: What lets layers of the network be passed by, if something does; losses cannot read inside of them.
    """

    companion: nn.Module
    passes_by: str = ""

    def bind(self, student: TaskModel, rows: EncodedDataset) -> AccompaniedLoss:
        """Bind the objective.

        Raises:
            UserError: If it reads inside of layers that do not always run.
        """
        bound = self.objective.bind(student, rows)
        if self.passes_by and (bound.reads.queries or bound.reads.keys or bound.reads.values):
            raise UserError(
                f"{self.passes_by}: layers do not always run, so the objective cannot read their queries, keys or "
                "values; take one that reads logits or hidden states, or distil with it in a step of its own afterwards"
            )
        return AccompaniedLoss(bound, self.companion)


class AccompaniedLoss(WrappedLoss):
    """A loss over known rows and the companion.

    Args:
        inner: The loss.
        companion: The module.
    """

    def __init__(self, inner: Loss, companion: nn.Module) -> None:
        super().__init__(inner, [companion])
        self.companion = companion

    def __call__(self, student: Signals, batch: Batch) -> dict[str, Tensor]:
        """Return the terms of both."""
        own = getattr(self.companion, "terms", dict)
        return {**self.inner(student, batch), **own()}
