"""Several objectives in one training step: their losses, weighted and added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from torch import Tensor, nn

from eval.errors import UserError
from eval.kinds.kind_registry import kind_of
from eval.task import Examples, TaskSpec
from teachers.data.encoded_dataset import Batch, EncodedDataset
from teachers.losses.loss import Loss, Objective
from teachers.signals.hooks import Signals
from teachers.taskmodel import TaskModel

Terms = Sequence[tuple[str, float, Loss]]
"""Name, weight and loss of each."""


@dataclass(frozen=True)
class WeightedSum(Objective):
    """Several objectives in one training step, which learn from all examples, of which each term reads what it can.

    The pairs that a term makes of them, such as each query with its relevant documents, are examples for all terms.
    A single objective learns from what it learns from alone: labels only, for example, from no text without a label.

    Attributes:
        terms: Name, weight and objective of each.
    """

    terms: tuple[tuple[str, float, Objective], ...]

    def select(self, spec: TaskSpec, examples: Examples) -> Examples:
        """Return all examples and the pairs that terms make of them, or what a single term learns from."""
        if len(self.terms) == 1:
            return self.terms[0][2].select(spec, examples)
        if not kind_of(spec.kind).searches:
            return examples
        learned = [one for _, _, objective in self.terms for one in objective.select(spec, examples)]
        pairs = {(one["text_a"], one["text_b"]): one for one in learned if "text_a" in one}
        there = {id(one) for one in examples}
        made = [one for one in pairs.values() if id(one) not in there]
        return Examples((*examples, *made), examples.name, examples.skipped)

    def bind(self, student: TaskModel, rows: EncodedDataset) -> BoundSum:
        """Bind every term to the same rows.

        Raises:
            UserError: If two terms want to meet different rows in a batch.
        """
        return BoundSum([(name, weight, objective.bind(student, rows)) for name, weight, objective in self.terms])


class BoundSum(Loss):
    """A weighted sum of losses over known rows; it asks for whatever one of them asks for.

    Args:
        terms: Name, weight and loss of each.
    """

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        losses = [loss for _, _, loss in terms]
        self.reads = reduce(or_, (loss.reads for loss in losses))
        self.modules = nn.ModuleList(loss.modules for loss in losses)
        self.groups = _groups(terms)
        self.whole_groups = any(loss.whole_groups for loss in losses)
        self.whole_batch = any(loss.whole_batch for loss in losses)

    def prepare(self, batch: Batch) -> Batch:
        """Return the batch as the student shall see it."""
        for _, _, loss in self.terms:
            batch = loss.prepare(batch)
        return batch

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Return over how many things each term is a mean."""
        return {f"{name}.{part}": count for name, _, loss in self.terms for part, count in loss.counts(batch).items()}

    def __call__(self, student: Signals, batch: Batch) -> dict[str, Tensor]:
        """Return every term of every loss, named ``technique.term`` and weighted."""
        return {
            f"{name}.{part}": weight * value
            for name, weight, loss in self.terms
            for part, value in loss(student, batch).items()
        }


def _groups(terms: Terms) -> Sequence[int] | None:
    asked = [(name, list(loss.groups)) for name, _, loss in terms if loss.groups is not None]
    if any(groups != asked[0][1] for _, groups in asked):
        raise UserError(
            f"{' and '.join(name for name, _ in asked)}: want different examples in one batch, so they cannot be terms "
            "of one objective; train with one after the other, in steps of their own"
        )
    return asked[0][1] if asked else None
