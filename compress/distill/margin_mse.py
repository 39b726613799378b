"""Margin-MSE for rerankers and embedders: by how much does the teacher prefer one passage of a query to another?"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from compress.distill.components.query_scores import QueryDistillation, QueryLoss, QueryScores
from compress.technique import Inputs
from eval.kinds.kind_registry import kind_of
from eval.task import TaskSpec
from teachers.data.encoded_dataset import Batch, EncodedDataset
from teachers.losses.task_loss import task_count, task_loss
from teachers.signals.hooks import Signals
from teachers.signals.model_teacher import TeacherSource
from teachers.taskmodel import TaskModel


class MarginDistillation(QueryDistillation):
    """Train a reranker or an embedder on the differences between a teacher's scores of the passages of one query.

    ``loss = alpha · mean over pairs of ((s_i - s_j) - (t_i - t_j))² + (1 - alpha) · hard`` over all pairs of rows of a
    batch with the same query, that is the same ``text_a``; ``text_b`` is the passage. The score of a row is its output
    (regression) or the difference of its two logits (classification), an embedder's is ``scale · cos(query, passage)``.
    Rows of one query are put into one batch.

    Attributes:
        alpha: Weight of the margins; the rest is the labels' own loss. Default 1, as in the paper.
        pairs: ``all`` pairs of a query's passages, or those with different ``labels`` alone, as in the paper, whose
            pairs are one relevant passage and one that is not; an embedder's passages without a label all differ.
        cross_encoder: For an embedder, and only there: the model folder or hub name of the cross-encoder, which stands
            beside the recipe's own teacher.
        scale: For an embedder: what its cosine is multiplied by to be a score, as cosines lie between -1 and 1. By
            default that by which the scores of a query range as far as the cross-encoder's, on average, before anything
            is learned; so the order is learned, and not the size of the other's scores.
        training: How weights are updated. Default batch of 32, as in the paper; rate 7e-6 there, for DistilBERT. An
            embedder's counts texts, two a pair.

    Needs:
        Training examples that are pairs of texts with repeated queries, and a teacher with the student's labels, or for
        an embedder ``cross_encoder``; tokenizers may differ.

    Reduces:
        Nothing by itself; it recovers a student that is already smaller.

    Limits:
        For pairs of texts with two classes or a number, and for embedding. A query with more passages than a batch, or
        one at the border between two batches, is cut in two; its margins across the cut are not learned in that epoch.

    Source:
        Hofstätter, Althammer, Schröder, Sertkan, Hanbury 2020, arXiv 2010.02666.
    """

    name: ClassVar[str] = "distill.margin_mse"
    source: ClassVar[str] = "Hofstätter, Althammer, Schröder, Sertkan, Hanbury 2020, arXiv 2010.02666"
    version: ClassVar[int] = 2

    alpha: float = Field(default=1.0, ge=0, le=1)
    pairs: Literal["all", "labels"] = "labels"

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse tasks without queries, data in which no query has two passages, and labels of an embedder's own."""
        found = super().check(student, inputs)
        if self.alpha < 1 and kind_of(student.task.kind).vectors:
            found.append(f"{self.name}: alpha: an embedding task has no labels' own loss; leave alpha at 1")
        return found

    def bind(self, student: TaskModel, rows: EncodedDataset, teacher: TeacherSource) -> MarginLoss:
        """Compute or find the teacher's scores, and find the rows of each query."""
        return MarginLoss(self.scored(student, rows, teacher), self, student.task)


class MarginLoss(QueryLoss):
    """The loss of ``distill.margin_mse`` over known rows.

    Args:
        scored: Gives the scores; the training loop keeps rows of one query together.
        config: Its weights.
        spec: The task.
    """

    def __init__(self, scored: QueryScores, config: MarginDistillation, spec: TaskSpec) -> None:
        super().__init__(scored)
        self.config, self.spec = config, spec

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Return how many pairs of passages and labels the terms are means of."""
        found = {"margin": pairs_of(*self._told(*self.scored.pairs(batch))).sum()}
        return found if self.config.alpha == 1 else found | {"task": task_count(self.spec, batch)}

    def __call__(self, student: Signals, batch: Batch) -> dict[str, Tensor]:
        """Return ``{"margin", "task"}``; a term whose weight is 0 is left out."""
        alpha, terms = self.config.alpha, {}
        if alpha:
            found = self.scored(student, batch)
            told = self._told(found.group, found.labels)
            terms["margin"] = alpha * margin_mse(found.student, found.teacher, *told)
        if alpha < 1:
            terms["task"] = (1 - alpha) * task_loss(self.spec, student.logits, batch)
        return terms

    def _told(self, group: Tensor, labels: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the group of each pair, and its label if two passages must differ in it."""
        return group, labels if self.config.pairs == "labels" else None


def margin_mse(student: Tensor, teacher: Tensor, group: Tensor, labels: Tensor | None = None) -> Tensor:
    """Return the mean squared difference of margins over the pairs of rows of one group; 0 if there is none.

    Hofstätter et al. 2020, arXiv 2010.02666.

    Args:
        student: Scores ``[B]``.
        teacher: Scores ``[B]``.
        group: Which rows belong together, such as the number of the query, ``[B]``.
        labels: If given, pairs with equal ones are left out, ``[B]``.

    Examples:
        >>> import torch
        >>> student, teacher = torch.tensor([1.0, 0.0, 9.0]), torch.tensor([3.0, 0.0, 0.0])
        >>> margin_mse(student, teacher, torch.tensor([0, 0, 1])).item()  # the third row is alone in its group
        4.0
    """
    error, pair = student - teacher, pairs_of(group, labels)
    squares = (error[:, None] - error[None, :]).square()
    return (squares * pair).sum() / pair.sum().clamp_min(1)


def pairs_of(group: Tensor, labels: Tensor | None = None) -> Tensor:
    """Return which rows make a pair, ``[B, B]`` above the diagonal; see ``margin_mse``."""
    pair = (group[:, None] == group[None, :]).triu(diagonal=1)
    return pair if labels is None else pair & (labels[:, None] != labels[None, :])
