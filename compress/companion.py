"""A companion of a training: a module beside the network that follows its course and may add terms to the loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import nn

from eval.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from teachers.features import Batch, Rows
    from teachers.objective import Loss, Objective
    from teachers.observing import Signals, Wanted
    from teachers.taskmodel import TaskModel


@dataclass(frozen=True)
class Accompanied:
    """An objective, and a module that the training loop keeps beside the network as it keeps projections.

    The module may have ``at_step`` and ``rates`` (see ``teachers.scheduled``), and ``terms() -> {name: tensor}``, which
    are added to those of the objective in every forward pass. It is thrown away after the training.

    Attributes:
        objective: What is minimised.
        companion: The module.
        passes_by: What lets layers of the network be passed by, if something does; losses cannot read inside of them.
    """

    objective: Objective
    companion: nn.Module
    passes_by: str = ""

    @property
    def reads_labels_alone(self) -> bool:
        """Whether the objective does."""
        return getattr(self.objective, "reads_labels_alone", False)

    def bind(self, student: TaskModel, rows: Rows) -> AccompaniedLoss:
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


@dataclass
class AccompaniedLoss:
    """A loss over known rows and the companion."""

    inner: Loss
    companion: nn.Module
    reads: Wanted = field(init=False)
    modules: nn.Module = field(init=False)

    def __post_init__(self) -> None:
        """Read what the loss reads, and let both follow the training."""
        self.reads = self.inner.reads
        self.modules = nn.ModuleList([self.inner.modules, self.companion])

    @property
    def groups(self) -> Sequence[int] | None:
        """Which rows stand in one batch, if the loss asks for it."""
        return getattr(self.inner, "groups", None)

    def __call__(self, student: Signals, batch: Batch) -> dict[str, Tensor]:
        """Return the terms of both."""
        own = getattr(self.companion, "terms", dict)
        return {**self.inner(student, batch), **own()}
