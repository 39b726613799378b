"""The loss over a whole sample, batch by batch: what importances and curvatures take their gradients of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from teachers.data.encoded_dataset import Batch
from teachers.losses.loss import Loss, term_shares
from teachers.signals.hooks import observe
from teachers.taskmodel import TaskModel


class SampleLoss:
    """``L = Σ_b c_b L_b / Σ_b c_b``: the loss ``L_b`` of each batch b by its share of the sample.

    A term of a loss is a mean over labels, weighted by the weights of their classes if the task has some. ``c_b`` is
    what it is a mean over in this batch: the sum of these weights, or the number of labels; for a term that counts
    nothing, the number of rows. So L does not depend on how the sample is cut into batches, and what a text adds to it
    keeps the weight of its class, which the mean over that text alone divides out.

    Args:
        student: The network; it is in the mode in which its loss is wanted.
        loss: A loss bound to its rows.
        batches: All of the sample.
    """

    def __init__(self, student: TaskModel, loss: Loss, batches: Sequence[Batch]) -> None:
        self.student, self.loss, self.batches = student, loss, batches
        found = [{"": float(len(batch))} | _floats(loss.counts(batch)) for batch in batches]
        self.shares = term_shares(
            found, {name: sum(one[name] for one in found) for name in (found[0] if found else ())}
        )

    def __len__(self) -> int:
        """How many batches there are."""
        return len(self.batches)

    def of(self, number: int) -> Tensor:
        """Return what batch ``number`` adds to the loss of the sample, computed anew; ``[]``."""
        batch, shares = self.batches[number], self.shares[number]
        terms = self.loss(observe(self.student.model, batch.inputs, self.loss.reads), batch)
        return torch.stack([value * shares.get(name, shares[""]) for name, value in terms.items()]).sum()


def _floats(counts: Mapping[str, Tensor]) -> dict[str, float]:
    return {name: float(count) for name, count in counts.items()}
