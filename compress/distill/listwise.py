"""Listwise distillation: the student shares its trust among the passages of a query as a cross-encoder does."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from compress.distill.components.distillation_losses import kl_divergence
from compress.distill.components.query_scores import QueryDistillation, QueryLoss, QueryScores
from teachers.data.encoded_dataset import Batch, EncodedDataset
from teachers.signals.hooks import Signals
from teachers.signals.model_teacher import TeacherSource
from teachers.taskmodel import TaskModel


class ListwiseDistillation(QueryDistillation):
    """Train a reranker or an embedder on a cross-encoder's ranking of the passages of each query.

    ``loss = T² · mean over queries of KL(softmax(t / T) ‖ softmax(s / T))``, where ``t`` and ``s`` are the scores that
    teacher and student give the passages of one query, that is the rows with the same ``text_a``; ``text_b`` is the
    passage. A reranker's score is its output (regression) or the difference of its two logits (classification), an
    embedder's is ``scale · cos(query, passage)``.

    Attributes:
        temperature: T; the higher, the more the passages count that the teacher ranks low. Scores that were learned
            from grades of 0 and 1 differ by 1 or so: T = 1 leaves their shares nearly alike, a lower one parts them.
        cross_encoder: For an embedder, and only there: the model folder or hub name of the cross-encoder, which stands
            beside the recipe's own teacher.
        scale: For an embedder: what its cosine is multiplied by to be a score, as cosines lie between -1 and 1. By
            default that by which the scores of a query range as far as the cross-encoder's, on average, before anything
            is learned; so the order is learned, and not the size of the other's scores.
        training: How weights are updated. An embedder's ``batch_size`` counts texts, two a pair.

    Needs:
        Training examples that are pairs of texts with repeated queries, and a teacher with the student's labels, or for
        an embedder ``cross_encoder``; tokenizers may differ.

    Reduces:
        Nothing by itself; it recovers a student that is already smaller.

    Limits:
        For pairs of texts with two classes or a number, and for embedding. Only the order and the distances within a
        query are learned, no score of a pair by itself. A query with more passages than a batch, or one at the border
        between two batches, is compared in two parts in that epoch.

    Source:
        Cao, Qin, Liu, Tsai, Li 2007, "Learning to rank: from pairwise approach to listwise approach" (ListNet), with a
        teacher's scores as in Hinton et al. 2015, arXiv 1503.02531.
    """

    name: ClassVar[str] = "distill.listwise"
    source: ClassVar[str] = "Cao, Qin, Liu, Tsai, Li 2007"
    version: ClassVar[int] = 2

    temperature: float = Field(default=1.0, gt=0)

    def bind(self, student: TaskModel, rows: EncodedDataset, teacher: TeacherSource) -> ListwiseLoss:
        """Compute or find the teacher's scores, and find the rows of each query."""
        return ListwiseLoss(self.scored(student, rows, teacher), self.temperature)


class ListwiseLoss(QueryLoss):
    """The loss of ``distill.listwise`` over known rows.

    Args:
        scored: Gives the scores.
        temperature: T.
    """

    def __init__(self, scored: QueryScores, temperature: float) -> None:
        super().__init__(scored)
        self.temperature = temperature

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Return how many queries have two passages."""
        group, _ = self.scored.pairs(batch)
        return {"listwise": batch.rows.new_tensor(len(lists_of(group)))}

    def __call__(self, student: Signals, batch: Batch) -> dict[str, Tensor]:
        """Return ``{"listwise"}``."""
        found = self.scored(student, batch)
        return {"listwise": listwise_kl(found.student, found.teacher, found.group, self.temperature)}


def listwise_kl(student: Tensor, teacher: Tensor, group: Tensor, temperature: float = 1.0) -> Tensor:
    """Return ``T² · mean over groups of KL(softmax(teacher / T) ‖ softmax(student / T))``; 0 if none has two rows.

    Softmax over the scores of a query: ListNet (Cao et al. 2007); a teacher's as targets: Hinton et al. 2015, arXiv
    1503.02531.

    Args:
        student: Scores ``[B]``.
        teacher: Scores ``[B]``.
        group: Which rows belong together, such as the number of the query, ``[B]``.
        temperature: T.

    Examples:
        >>> import torch
        >>> student, teacher = torch.tensor([1.0, 0.0, 9.0]), torch.tensor([3.0, 0.0, 0.0])
        >>> round(listwise_kl(student, teacher, torch.tensor([0, 0, 1])).item(), 4)  # the third row is alone
        0.1698
    """
    together = lists_of(group)
    if not len(together):
        return student.sum() * 0.0
    own, other = (side.expand(len(together), -1).masked_fill(~together, -torch.inf) for side in (student, teacher))
    return kl_divergence(own, other, temperature)


def lists_of(group: Tensor) -> Tensor:
    """Return for every group of two rows or more which rows it has, ``[groups, B]``."""
    numbers = torch.tensor(sorted(set(group.tolist())), device=group.device)
    together = numbers[:, None] == group[None, :]
    several: Tensor = together[together.sum(dim=1) > 1]
    return several
