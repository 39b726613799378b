"""Margin-MSE for rerankers: the student learns by how much the teacher prefers one passage of a query to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from compress.distill.components.distillation import Distillation
from compress.technique import Inputs
from eval.kinds.kind_registry import kind_of
from eval.task import TaskSpec
from teachers.anatomy.encoder import family_of
from teachers.data.encoded_dataset import Batch, EncodedDataset
from teachers.losses.loss import Loss
from teachers.losses.ranking import queries, scores
from teachers.losses.task_loss import task_count, task_loss
from teachers.signals.hooks import Signals
from teachers.signals.model_teacher import Reader, TeacherSource
from teachers.taskmodel import TaskModel


class MarginDistillation(Distillation):
    """Train a reranker on the differences between a teacher's scores of the passages of one query.

    ``loss = alpha · mean over pairs of ((s_i - s_j) - (t_i - t_j))² + (1 - alpha) · hard`` over all pairs of rows of a
    batch with the same query, that is the same ``text_a``; ``text_b`` is the passage. The score of a row is its output
    (regression) or the difference of its two logits (classification). Rows of one query are put into one batch.

    Attributes:
        alpha: Weight of the margins; the rest is the labels' own loss. Default 1, as in the paper.
        pairs: ``all`` pairs of a query's passages, or those with different ``labels`` alone, as in the paper, whose
            pairs are one relevant passage and one that is not.
        training: How weights are updated. Default batch of 32, as in the paper; rate 7e-6 there, for DistilBERT.

    Needs:
        Training examples that are pairs of texts with repeated queries, and a teacher with the student's labels;
        tokenizers may differ.

    Reduces:
        Nothing by itself; it recovers a student that is already smaller.

    Limits:
        For pairs of texts with two classes or a number. A query with more passages than a batch, or one at the border
        between two batches, is cut in two; its margins across the cut are not learned in that epoch.

    Source:
        Hofstätter, Althammer, Schröder, Sertkan, Hanbury 2020, arXiv 2010.02666.
    """

    name: ClassVar[str] = "distill.margin_mse"
    source: ClassVar[str] = "Hofstätter, Althammer, Schröder, Sertkan, Hanbury 2020, arXiv 2010.02666"

    alpha: float = Field(default=1.0, ge=0, le=1)
    pairs: Literal["all", "labels"] = "labels"

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse tasks without queries, and data in which no query has two passages."""
        spec, family = student.task, family_of(student.model).model_type
        found = []
        if not spec.pair or not kind_of(spec.kind).pairs:
            found.append(
                f"compares the passages of a query, and this {family} answers {spec.kind} of single texts; "
                "give it pairs: text_a the query, text_b the passage"
            )
        elif spec.labels and not (kind_of(spec.kind).one_label and len(spec.labels) == 2):
            found.append(f"needs a score, which {len(spec.labels)} classes do not have; take two classes or a number")
        elif inputs.train and len({example["text_a"] for example in inputs.train}) == len(inputs.train):
            found.append(f"no two of the {len(inputs.train)} training examples have the same text_a, the query")
        return [f"{self.name}: {problem}" for problem in found]

    def bind(self, student: TaskModel, rows: EncodedDataset, teacher: TeacherSource) -> MarginLoss:
        """Compute or find the teacher's scores, and find the rows of each query."""
        return MarginLoss(self, student.task, teacher.read(rows), queries(rows))


@dataclass
class MarginLoss(Loss):
    """The loss of ``distill.margin_mse`` over known rows.

    Attributes:
        config: Its weights.
        spec: The task.
        reader: The teacher's outputs.
        groups: Number of the query of every row; the training loop keeps rows of one query together.
    """

    config: MarginDistillation
    spec: TaskSpec
    reader: Reader
    groups: Sequence[int]

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Return how many pairs of passages and labels the terms are means of."""
        return {"margin": pairs_of(*self._of(batch)).sum(), "task": task_count(self.spec, batch)}

    def __call__(self, student: Signals, batch: Batch) -> dict[str, Tensor]:
        """Return ``{"margin", "task"}``; a term whose weight is 0 is left out."""
        alpha, terms = self.config.alpha, {}
        if alpha:
            own, other = (scores(signals.logits.float()) for signals in (student, self.reader(batch)))
            terms["margin"] = alpha * margin_mse(own, other, *self._of(batch))
        if alpha < 1:
            terms["task"] = (1 - alpha) * task_loss(self.spec, student.logits, batch)
        return terms

    def _of(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Return the group of each row, and its label if pairs must differ in it."""
        group = torch.tensor(self.groups, device=batch.rows.device)[batch.rows]
        return group, batch.targets["labels"] if self.config.pairs == "labels" else None


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
