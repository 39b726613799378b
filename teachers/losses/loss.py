"""The base of everything that training minimises: a description, and the loss that it becomes for known rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor, nn

from eval.task import Examples, TaskSpec
from teachers.data.encoded_dataset import Batch, EncodedDataset
from teachers.signals.hooks import NOTHING, Signals, SignalSpec

if TYPE_CHECKING:
    from teachers.taskmodel import TaskModel


class Loss:
    """An objective that is tied to one student and its rows; the defaults are those of a mean over rows.

    A batch may be cut into pieces (``gradient accumulation``, several processes). Its terms are then weighted so that
    the update is that of the whole batch, which needs to know what each term is a mean of: rows, unless ``counts`` says
    otherwise. A loss that compares the rows of a batch with each other sets ``groups`` or ``whole_batch``.

    Attributes:
        reads: What of the student is read.
        modules: Parameters that are trained beside the student's, such as projections, and then thrown away.
        groups: A number for each row, if rows of one number shall meet in a batch; pieces never part them.
        whole_groups: Whether the border between two batches may not part them either.
        whole_batch: Whether the terms are not means over parts of a batch; outputs of all pieces are then gathered
            before the loss is computed.
    """

    reads: SignalSpec = NOTHING
    modules: nn.Module = nn.Module()
    groups: Sequence[int] | None = None
    whole_groups: bool = False
    whole_batch: bool = False

    def prepare(self, batch: Batch) -> Batch:
        """Return the batch as the student shall see it."""
        return batch

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Return over how many things (tokens, labels, pairs) each term is a mean; rows, for terms not named here."""
        del batch
        return {}

    def __call__(self, student: Signals, batch: Batch) -> dict[str, Tensor]:
        """Return the terms of the loss, already weighted; their sum is minimised."""
        raise NotImplementedError(f"{type(self).__name__} does not implement __call__")


LEAST = 1e-9
"""What a whole weighs at least, so that one without labels divides nothing by 0."""


def term_shares(parts: Sequence[Mapping[str, float]], whole: Mapping[str, float]) -> list[dict[str, float]]:
    """Return what each part's terms are multiplied by, so that their sums over the parts are means over the whole.

    Args:
        parts: Term -> over how many things it is a mean in each part (``Loss.counts``); the entry without a name counts
            rows, for terms that are means over them.
        whole: The same of all parts together.
    """
    return [{name: count / max(whole[name], LEAST) for name, count in part.items()} for part in parts]


class WrappedLoss(Loss):
    """A loss with something beside it; whatever a subclass does not change is the inner loss's own.

    Args:
        inner: The loss.
        beside: Modules that are trained beside the student, in addition to the loss's own.
    """

    def __init__(self, inner: Loss, beside: Iterable[nn.Module] = ()) -> None:
        self.inner = inner
        self.reads, self.modules = inner.reads, nn.ModuleList([inner.modules, *beside])
        self.groups, self.whole_groups, self.whole_batch = inner.groups, inner.whole_groups, inner.whole_batch

    def prepare(self, batch: Batch) -> Batch:
        """Return the batch as the student shall see it."""
        return self.inner.prepare(batch)

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Return over how many things each term is a mean."""
        return self.inner.counts(batch)

    def __call__(self, student: Signals, batch: Batch) -> dict[str, Tensor]:
        """Return the terms of the inner loss."""
        return self.inner(student, batch)


class Objective(Protocol):
    """A description of a loss, such as a distillation technique; it becomes a ``Loss`` by being bound.

    Subclass it for the defaults.
    """

    def select(self, spec: TaskSpec, examples: Examples) -> Examples:
        """Return the examples that it learns from; all by default.

        Raises:
            UserError: If it learns from none.
        """
        del spec
        return examples

    def bind(self, student: TaskModel, rows: EncodedDataset) -> Loss:
        """Prepare for these rows: compute and cache teacher outputs, make projections."""
        raise NotImplementedError(f"{type(self).__name__} does not implement bind")


@dataclass(frozen=True)
class WrappedObjective(Objective):
    """An objective with something beside it, which learns from the same examples.

    Attributes:
        objective: The objective.
    """

    objective: Objective

    def select(self, spec: TaskSpec, examples: Examples) -> Examples:
        """Return the examples that the objective learns from."""
        return self.objective.select(spec, examples)
