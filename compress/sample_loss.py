"""The loss over a whole sample, batch by batch: what importances and curvatures take their gradients of."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from teachers.data.encoded_dataset import Batch
from teachers.losses.loss import Loss
from teachers.signals.hooks import observe
from teachers.taskmodel import TaskModel

LEAST = 1e-9
"""What a sample weighs at least, so that one without labels divides nothing by 0."""


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
        found = [{"": len(batch)} | loss.counts(batch) for batch in batches]
        total = {name: max(sum(float(one[name]) for one in found), LEAST) for name in (found[0] if found else ())}
        self.shares = [{name: float(count) / total[name] for name, count in one.items()} for one in found]

    def __len__(self) -> int:
        """How many batches there are."""
        return len(self.batches)

    def of(self, number: int) -> Tensor:
        """Return what batch ``number`` adds to the loss of the sample, computed anew; ``[]``."""
        batch, shares = self.batches[number], self.shares[number]
        terms = self.loss(observe(self.student.model, batch.inputs, self.loss.reads), batch)
        return torch.stack([value * shares.get(name, shares[""]) for name, value in terms.items()]).sum()
