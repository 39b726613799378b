"""The losses that a fine-tuning can name in the place of the task's own; plain values, read without torch.

    finetune: {loss: contrastive}            or            finetune: {loss: {contrastive: {temperature: 0.1}}}

Three train a Siamese encoder, whose task is ``embedding`` and whose examples are pairs; one ranks the texts of a query.
Each says which examples it learns from, and is an ``Objective``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from eval.task import Examples, TaskSpec
from teachers.data.example_pairs import labelled_pairs, matching_pairs, pair_labels, refuse_degrees
from teachers.named_block import OneNamedBlock

if TYPE_CHECKING:
    from torch import Tensor

    from teachers.data.encoded_dataset import EncodedDataset
    from teachers.losses.loss import Loss
    from teachers.taskmodel import TaskModel


class NamedLoss(BaseModel):
    """Base of the losses that can be named: the fields of a loss, and the loss once rows are known.

    Attributes:
        version: Raised whenever the same fields give other numbers.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    version: ClassVar[int] = 1

    def select(self, spec: TaskSpec, examples: Examples) -> Examples:
        """Return the examples that this loss learns from.

        Raises:
            UserError: If the task is of another form, or no example teaches anything.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement select")

    def bind(self, student: TaskModel, rows: EncodedDataset) -> Loss:
        """Return the loss for these rows."""
        raise NotImplementedError(f"{type(self).__name__} does not implement bind")


class CosineRegression(NamedLoss):
    """The cosine of the two texts shall be their label: ``mean (cos(u, v) - y)²``, ``y`` scaled to 0 to 1.

    Attributes:
        scale: The labels that mean 0 and 1; by default the smallest and the largest of the training pairs.

    Source:
        Reimers and Gurevych 2019, arXiv 1908.10084.
    """

    scale: tuple[float, float] | None = None

    @model_validator(mode="after")
    def _has_a_range(self) -> CosineRegression:
        if self.scale is not None and not self.scale[0] < self.scale[1]:
            raise ValueError(f"scale: got {list(self.scale)}, the first number must be below the second")
        return self

    def select(self, spec: TaskSpec, examples: Examples) -> Examples:
        """Return the pairs with a label."""
        return labelled_pairs(spec, examples)

    def bind(self, student: TaskModel, rows: EncodedDataset) -> Loss:
        """Return the loss of these pairs."""
        from teachers.losses.siamese import SiameseLoss, cosine_regression, scaled, truths

        targets = scaled(truths(rows), self.scale)
        return SiameseLoss("regression", rows, lambda u, v, pairs: cosine_regression(u, v, targets[pairs]))


class MarginContrast(NamedLoss):
    """Matching texts come together, others part: ``mean ½ (y d² + (1 - y) max(0, margin - d)²)``.

    ``d`` is the Euclidean distance of the two vectors scaled to length 1, from 0 to 2; ``y`` is 1 for the larger of the
    two labels and 0 for the other.

    Attributes:
        margin: Distance from which texts that do not match are left alone.

    Source:
        Hadsell, Chopra, LeCun 2006, "Dimensionality reduction by learning an invariant mapping".
    """

    margin: float = Field(default=1.0, gt=0, le=2)

    def select(self, spec: TaskSpec, examples: Examples) -> Examples:
        """Return the pairs with a label, of which there must be two."""
        found = labelled_pairs(spec, examples)
        refuse_degrees(found)
        return found

    def bind(self, student: TaskModel, rows: EncodedDataset) -> Loss:
        """Return the loss of these pairs."""
        from teachers.losses.siamese import SiameseLoss, margin_contrast, scaled, truths

        matches = scaled(truths(rows))
        return SiameseLoss("margin", rows, lambda u, v, pairs: margin_contrast(u, v, matches[pairs], self.margin))


class InBatchNegatives(NamedLoss):
    """Each first text shall find its own second text among those of the batch (multiple negatives ranking).

    ``-mean_i log( exp(cos(u_i, v_i) / temperature) / sum_j exp(cos(u_i, v_j) / temperature) )``. It learns from pairs
    that match: those with the largest label, or all if none has a label; of retrieval a query and each relevant
    document. A second text that matches the first one elsewhere, or is the same, is left out of the sum. A larger batch
    gives each more to choose from, also with accumulation and several processes, whose vectors are gathered first (Gao
    et al. 2021, arXiv 2101.06983).

    Attributes:
        temperature: Divides the cosines.

    Source:
        Henderson et al. 2017, arXiv 1705.00652, with the cosine in the place of the inner product.
    """

    version: ClassVar[int] = 2
    temperature: float = Field(default=0.05, gt=0)

    def select(self, spec: TaskSpec, examples: Examples) -> Examples:
        """Return the pairs that match."""
        return matching_pairs(spec, examples)

    def bind(self, student: TaskModel, rows: EncodedDataset) -> Loss:
        """Return the loss of these pairs."""
        from teachers.data.pair_rows import TextPairs
        from teachers.losses.siamese import SiameseLoss, in_batch_negatives

        known = TextPairs.of(rows)

        def compare(first: Tensor, second: Tensor, pairs: Tensor) -> Tensor:
            queries = (2 * pairs).tolist()
            right_too = known.belong_together(queries, [row + 1 for row in queries]).fill_diagonal_(False)
            return in_batch_negatives(first, second, self.temperature, right_too.to(first.device))

        return SiameseLoss("contrastive", rows, compare, whole_batch=True)


class PairwiseRanking(NamedLoss):
    """The right text of a query shall get the best score: ``-log( exp(r⁺) / sum_candidates exp(r) )``, over queries.

    ``text_a`` is the query, ``text_b`` a candidate; rows of one query stand in one batch. The score of a row is its
    output (regression), or the logit of the relevant label less that of the other (classification). Of several right
    candidates each stands against the wrong ones, and their losses are averaged.

    Attributes:
        relevant: For classification: the label of a right candidate; by default the second one. Of numbers, the
            largest of a query is right.

    Source:
        Liu, He, Chen, Gao 2019, arXiv 1901.11504 (MT-DNN), relevance ranking.
    """

    relevant: str | None = None

    def select(self, spec: TaskSpec, examples: Examples) -> Examples:
        """Return the rows of all queries that have both a right candidate and a wrong one."""
        from teachers.losses.ranking import rankable

        return rankable(spec, examples, self.relevant)

    def bind(self, student: TaskModel, rows: EncodedDataset) -> Loss:
        """Return the loss of these rows."""
        from teachers.losses.ranking import bound

        return bound(student.task, rows, self.relevant)


class SmoothedLabels(NamedLoss):
    """The cross-entropy of the labels with some weight on all others; a network is then less sure of itself.

    Attributes:
        epsilon: Weight that is spread over all labels, or over the vocabulary; 0.1 is usual for translation.

    Source:
        Szegedy et al. 2016, arXiv 1512.00567; Vaswani et al. 2017, arXiv 1706.03762.
    """

    epsilon: float = Field(default=0.1, gt=0, lt=1)

    def select(self, spec: TaskSpec, examples: Examples) -> Examples:
        """Return the examples with a label."""
        from teachers.data.encoded_dataset import labelled
        from teachers.losses.smoothed import refuse_unsmooth

        refuse_unsmooth(spec)
        return labelled(spec, examples)

    def bind(self, student: TaskModel, rows: EncodedDataset) -> Loss:
        """Return the loss of these rows."""
        from teachers.losses.smoothed import SmoothedLoss

        del rows
        return SmoothedLoss(student.task, self.epsilon)


class LossBlock(OneNamedBlock):
    """Which loss is minimised; exactly one.

    Attributes:
        regression: For pairs whose label is a degree of similarity.
        margin: For pairs that match or do not.
        contrastive: For pairs that match, against the other texts of a batch.
        ranking: For candidates of a query, one of them right.
        smoothed: For one label among several, or one token among all: some of the weight is spread.
    """

    what: ClassVar[str] = "loss"

    regression: CosineRegression | None = None
    margin: MarginContrast | None = None
    contrastive: InBatchNegatives | None = None
    ranking: PairwiseRanking | None = None
    smoothed: SmoothedLabels | None = None

    @property
    def objective(self) -> NamedLoss:
        """The loss that was named."""
        named: NamedLoss = getattr(self, self.one)
        return named


def named(loss: NamedLoss) -> dict[str, Any]:
    """Return a loss as plain values, its class, fields and later versions, for what tells two trainings apart."""
    told = {type(loss).__name__: loss.model_dump(mode="json", exclude_defaults=True)}
    return told if loss.version == 1 else told | {"version": loss.version}


def by_labels(examples: Examples) -> NamedLoss:
    """Return the loss that fits the labels of pairs: margin for two different ones, regression for more."""
    return MarginContrast() if len(pair_labels(examples)) == 2 else CosineRegression()
