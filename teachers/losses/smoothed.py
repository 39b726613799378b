"""The loss of the labels with some of its weight spread over all of them.

Szegedy et al. 2016, arXiv 1512.00567; of translation: Vaswani et al. 2017, arXiv 1706.03762.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (the field's own abbreviation)

from eval.encoding import IGNORED
from eval.errors import UserError
from eval.kinds.kind_registry import kind_of
from eval.kinds.learning import Learning
from eval.task import TaskSpec
from teachers.data.encoded_dataset import Batch
from teachers.losses.loss import Loss
from teachers.signals.hooks import Signals


@dataclass
class SmoothedLoss(Loss):
    """The loss of the labels of known rows: ``(1 - epsilon) · cross-entropy + epsilon · mean over classes``."""

    spec: TaskSpec
    epsilon: float

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Return how many labels there are, or their weight."""
        return {"task": kind_of(self.spec.kind).counted(self.spec, batch.targets["labels"])}

    def __call__(self, student: Signals, batch: Batch) -> dict[str, Tensor]:
        """Return ``{"task": …}``."""
        return {"task": smoothed(self.spec, student.logits, batch, self.epsilon)}


def smoothed(spec: TaskSpec, logits: Tensor, batch: Batch, epsilon: float) -> Tensor:
    """Return the mean cross-entropy with targets ``1 - epsilon + epsilon / C`` of the label, ``epsilon / C`` elsewhere.

    Args:
        spec: The task; ``class_weights`` count as in the loss without smoothing.
        logits: ``[B, C]``, or ``[B, L, C]`` with one label a token.
        batch: Holds the labels.
        epsilon: Weight that is spread, 0 to 1.
    """
    labels = batch.targets["labels"].reshape(-1)
    flat = logits.float().reshape(len(labels), -1)
    if not bool((labels != IGNORED).any()):
        return flat.sum() * 0.0
    weights = None if spec.class_weights is None else flat.new_tensor(spec.class_weights)
    return F.cross_entropy(flat, labels, weight=weights, ignore_index=IGNORED, label_smoothing=epsilon)


def refuse_unsmooth(spec: TaskSpec) -> None:
    """Refuse a task whose loss is no cross-entropy of one label among several.

    Raises:
        UserError: If it is one.
    """
    kind = kind_of(spec.kind)
    if type(kind).loss is not Learning.loss or kind.number or kind.vectors:
        raise UserError(f"label smoothing: the loss of {spec.kind} is no cross-entropy of labels; leave it out")
