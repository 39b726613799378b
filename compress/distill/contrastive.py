"""Contrastive distillation: a query finds its passage among those of the batch and mined hard negatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from compress.distill.components.distillation import Distillation
from compress.distill.components.distillation_losses import kl_divergence
from compress.distill.components.hard_negatives import mined
from compress.distill.components.row_vectors import row_vectors
from compress.technique import Inputs
from eval.kinds.kind_registry import kind_of
from eval.task import Examples, TaskSpec
from teachers.anatomy.encoder import family_of
from teachers.data.encoded_dataset import Batch, EncodedDataset
from teachers.data.example_pairs import matching, matching_pairs
from teachers.data.pair_rows import TextPairs
from teachers.losses.loss import Loss
from teachers.losses.siamese import cosines, in_batch_negatives
from teachers.signals.hooks import Signals
from teachers.signals.model_teacher import Reader, TeacherSource
from teachers.taskmodel import TaskModel


class ContrastiveDistillation(Distillation):
    """Train a sentence embedder to find the passage of a query, and to rank passages as a teacher does.

    ``loss = (1 - alpha) · -mean_i log( exp(S_ii / temperature) / sum_j exp(S_ij / temperature) )
    + alpha · mean_i KL(softmax(T_i / temperature) ‖ softmax(S_i / temperature))``. ``S_ij`` is the student's cosine of
    query i and passage j, ``T_ij`` the teacher's; the passages are all of the batch and the mined hard negatives of its
    queries. The first term is InfoNCE; a passage that the data pairs with a query elsewhere, or that is the query's own
    text, is none of its negatives there.

    Attributes:
        alpha: Weight of the teacher's similarities; the rest is InfoNCE.
        temperature: Divides the cosines.
        negatives: Mined hard negatives of each query: the passages of other pairs that the teacher finds nearest to it.
            0 leaves those of the batch.
        margin: A passage whose cosine with the query is above this share of the right passage's is left out of them, as
            it may be right too.
        training: How weights are updated. ``batch_size`` counts texts, two a pair, without the mined ones.

    Needs:
        Training pairs and a sentence embedder as teacher; tokenizers and widths may differ.

    Reduces:
        Nothing by itself; it recovers a student that is already smaller.

    Limits:
        For embedding tasks whose examples are pairs (``text_a`` the query, ``text_b`` the passage), of which those with
        the largest label, or without any, belong together; and for retrieval, where a training query belongs together
        with each of its relevant documents, of whatever grade. Alone it learns from these; as a term of an objective it
        also compares with the passages of the other pairs. The teacher mines once, before training: its vectors are
        cached as teacher outputs, so a run that is resumed finds the same negatives. A step embeds ``negatives`` more
        passages for each pair. The right passage of a query stays a candidate of the teacher's softmax with all others.

    Source:
        van den Oord, Li, Vinyals 2018, arXiv 1807.03748; hard negatives below a share of the right score: de Souza P.
        Moreira et al. 2024, arXiv 2407.15831.
    """

    name: ClassVar[str] = "distill.contrastive"
    source: ClassVar[str] = "van den Oord, Li, Vinyals 2018, arXiv 1807.03748"
    version: ClassVar[int] = 2

    alpha: float = Field(default=0.5, ge=0, le=1)
    temperature: float = Field(default=0.05, gt=0)
    negatives: int = Field(default=0, ge=0)
    margin: float = Field(default=0.95, gt=0, le=1)

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse other kinds of tasks, and data without pairs that belong together."""
        kind, family = student.task.kind, family_of(student.model).model_type
        if not kind_of(kind).vectors:
            return [f"{self.name}: compares vectors of texts, and this {family} answers {kind}; write kind: embedding"]
        if inputs.train is None:
            return []
        pairs = kind_of(kind).text_pairs(inputs.train)
        if (count := sum(matching(student.task, pairs))) > 1:
            return []
        return [
            f"{self.name}: needs two or more pairs (text_a the query, text_b the passage; of retrieval the queries of "
            f"qrels/train.tsv with their documents) that belong together, and {inputs.train.name} has {count}"
        ]

    def select(self, spec: TaskSpec, examples: Examples) -> Examples:
        """Return the pairs that belong together."""
        return matching_pairs(spec, examples)

    def bind(self, student: TaskModel, rows: EncodedDataset, teacher: TeacherSource) -> ContrastiveLoss:
        """Compute or find the teacher's vectors, and mine each query's hard negatives with them."""
        del student
        reader, pairs = teacher.read(rows), TextPairs.of(rows)
        found = mined(pairs, row_vectors(rows, reader), self.negatives, self.margin) if self.negatives else {}
        return ContrastiveLoss(self, rows, reader, pairs, found)


@dataclass
class ContrastiveLoss(Loss):
    """The loss of ``distill.contrastive`` over known rows.

    Attributes:
        config: Its weights.
        rows: All rows, of which hard negatives are added to batches.
        reader: The teacher's vectors.
        pairs: Which rows are queries and passages.
        mined: Row of a query -> rows of its hard negatives.
    """

    config: ContrastiveDistillation
    rows: EncodedDataset
    reader: Reader
    pairs: TextPairs
    mined: Mapping[int, Sequence[int]]

    whole_groups = True
    whole_batch = True

    def __post_init__(self) -> None:
        """Keep the two texts of a pair in one batch."""
        self.groups = [feature.example for feature in self.rows.features]

    def prepare(self, batch: Batch) -> Batch:
        """Return the batch with the hard negatives of its queries, each text once; they stand behind their query."""
        rows = batch.rows.tolist()
        there = {self.pairs.passages[row] for row in rows if row in self.pairs.passages}
        found: list[list[int]] = []
        for row in rows:
            found.append([row])
            for negative in self.mined.get(row, ()):
                if (text := self.pairs.passages[negative]) not in there:
                    there.add(text)
                    found[-1].append(negative)
        if not any(len(own) > 1 for own in found):
            return batch
        larger = self.rows.batch([row for own in found for row in own], progress=batch.progress).to(batch.rows.device)
        # Counted like the choices of an example, negatives stay with their query where the batch is cut.
        return replace(larger, targets={"choices": torch.tensor([len(own) for own in found])})

    def __call__(self, student: Signals, batch: Batch) -> dict[str, Tensor]:
        """Return ``{"infonce", "similarity"}``; a term whose weight is 0 is left out."""
        place = {row: position for position, row in enumerate(batch.rows.tolist())}
        queries = [row for row in place if row in self.pairs.queries and row + 1 in place]
        own = [row + 1 for row in queries]
        right = set(own)
        passages = [*own, *(row for row in place if row in self.pairs.passages and row not in right)]
        alpha, vectors = self.config.alpha, student.logits.float()
        if not queries:
            return {"infonce": vectors.sum() * 0.0}
        sides = [[place[row] for row in rows] for rows in (queries, passages)]
        first, second = (vectors[side] for side in sides)
        terms = {}
        if alpha < 1:
            others = self.pairs.belong_together(queries, passages).fill_diagonal_(False).to(vectors.device)
            terms["infonce"] = (1 - alpha) * in_batch_negatives(first, second, self.config.temperature, others)
        if alpha:
            wanted = cosines(*(self.reader(batch).logits.float()[side] for side in sides))
            terms["similarity"] = alpha * choice_kl(cosines(first, second), wanted, self.config.temperature)
        return terms


def choice_kl(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return the mean over queries of ``KL(softmax(teacher / temperature) ‖ softmax(student / temperature))``.

    ``kl_divergence`` (Hinton et al. 2015, arXiv 1503.02531) without its factor of the squared temperature, as scores
    are not logits that were made for it.

    Args:
        student: Scores of each query's candidates, such as cosines, ``[n, m]``; -inf where a query has fewer.
        teacher: The same of the teacher.
        temperature: Divides both.

    Examples:
        >>> import torch
        >>> scores = torch.tensor([[0.9, 0.1]])
        >>> choice_kl(scores, scores, 0.05).item(), round(choice_kl(scores, 1 - scores, 1.0).item(), 4)
        (0.0, 0.304)
    """
    return kl_divergence(student / temperature, teacher / temperature)
