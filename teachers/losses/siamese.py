"""Siamese encoders: one network reads both texts of a pair, and a loss compares their vectors.

Each text is a row of its own, and the rows of a pair stand in one batch. Which loss is which is said in
``teachers.losses.catalogue``; here are their formulas and the choice of the pairs that they learn from.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (the field's own abbreviation)

from eval.errors import UserError
from eval.task import Examples, TaskSpec
from teachers.data.encoded_dataset import Batch, Rows
from teachers.losses.catalogue import CosineRegression, MarginContrast, NamedLoss
from teachers.losses.loss import Loss
from teachers.signals.hooks import Signals

Compare = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(first vectors ``[n, d]``, second vectors ``[n, d]``, numbers of the pairs ``[n]``) -> loss."""


class SiameseLoss(Loss):
    """A comparison of the two vectors of every pair in a batch.

    Args:
        name: Of the loss, in histories.
        rows: Both texts of each pair, one after the other, and nothing else.
        compare: The loss of some pairs.
        whole_batch: Whether the pairs of a batch are compared with each other.
    """

    whole_groups = True

    def __init__(self, name: str, rows: Rows, compare: Compare, whole_batch: bool = False) -> None:
        self.name, self.compare, self.whole_batch = name, compare, whole_batch
        self.groups = [feature.example for feature in rows.features]
        if self.groups != [number for number in range(len(rows.examples)) for _ in range(2)]:
            raise UserError(f"loss: {name}: learns from pairs of texts, and some examples are single texts")

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Return how many pairs there are."""
        return {self.name: batch.rows.new_tensor(len(batch.rows) // 2)}

    def __call__(self, student: Signals, batch: Batch) -> dict[str, Tensor]:
        """Return the loss under its name."""
        vectors = student.logits.float()
        place = {row: position for position, row in enumerate(batch.rows.tolist())}
        pairs = [row // 2 for row in place if row % 2 == 0 and row + 1 in place]
        if not pairs:
            return {self.name: vectors.sum() * 0.0}
        first, second = (vectors[[place[2 * pair + side] for pair in pairs]] for side in (0, 1))
        return {self.name: self.compare(first, second, torch.tensor(pairs))}


def cosine_regression(first: Tensor, second: Tensor, targets: Tensor) -> Tensor:
    """Return ``mean (cos(u, v) - y)²``.

    Args:
        first: Vectors ``[n, d]``.
        second: Vectors ``[n, d]``.
        targets: ``[n]``, 0 to 1.

    Examples:
        >>> import torch
        >>> first, second = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[3.0, 0.0], [0.0, 1.0]])
        >>> cosine_regression(first, second, torch.tensor([1.0, 1.0])).item()
        0.5
    """
    return F.mse_loss(F.cosine_similarity(first, second), targets.to(first))


def margin_contrast(first: Tensor, second: Tensor, matches: Tensor, margin: float) -> Tensor:
    """Return ``mean ½ (y d² + (1 - y) max(0, margin - d)²)`` with ``d`` between vectors scaled to length 1.

    Args:
        first: Vectors ``[n, d]``.
        second: Vectors ``[n, d]``.
        matches: 1 for pairs that match, 0 for others, ``[n]``.
        margin: Distance from which others are left alone.
    """
    squares = (F.normalize(first, dim=-1) - F.normalize(second, dim=-1)).square().sum(dim=-1)
    apart = (margin - squares.clamp(min=1e-12).sqrt()).clamp(min=0).square()
    matches = matches.to(first)
    return (matches * squares + (1 - matches) * apart).mean() / 2


def in_batch_negatives(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """Return the cross-entropy of each first text's choice among all second texts, a scalar; its own is right.

    Args:
        first: Vectors ``[n, d]``.
        second: Vectors ``[n, d]``.
        temperature: Divides the cosines.
    """
    cosines = F.normalize(first, dim=-1) @ F.normalize(second, dim=-1).T
    return F.cross_entropy(cosines / temperature, torch.arange(len(first), device=first.device))


def by_labels(examples: Examples) -> NamedLoss:
    """Return the loss that fits the labels of pairs: margin for two different ones, regression for more."""
    return MarginContrast() if len(_labels(examples)) == 2 else CosineRegression()


def labelled_pairs(spec: TaskSpec, examples: Examples) -> Examples:
    """Return the pairs that have a label.

    Raises:
        UserError: If the task has no vectors, no pair has a label, or all have the same.
    """
    refuse_other_kinds(spec)
    found = [example for example in examples if "text_a" in example and "label" in example]
    if not found:
        raise UserError(
            "an embedding task has no labels to learn from unless its examples are pairs (text_a, text_b) with a "
            f"number as label, and none of the {len(examples)} examples of {examples.name} is; name loss: contrastive "
            "for pairs that match, or train with a teacher's vectors: distill.embedding"
        )
    if len({example["label"] for example in found}) == 1:
        raise UserError(
            f"all {len(found)} pairs of {examples.name} have the label {found[0]['label']:g}, which tells no pair from "
            "another; if they match, name loss: contrastive"
        )
    return Examples(found, examples.name, examples.skipped)


def matching_pairs(spec: TaskSpec, examples: Examples) -> Examples:
    """Return the pairs with the largest label, or all pairs if none has a label.

    Raises:
        UserError: If the task has no vectors, or there are not two such pairs.
    """
    refuse_other_kinds(spec)
    best = max(_labels(examples), default=None)
    found = [example for example in examples if "text_a" in example and example.get("label") == best]
    if len(found) < 2:
        raise UserError(
            "loss: contrastive: needs two or more pairs (text_a, text_b) that match, and "
            f"{examples.name} has {len(found)}"
        )
    return Examples(found, examples.name, examples.skipped)


def refuse_other_kinds(spec: TaskSpec) -> None:
    """Refuse a task whose answers are no vectors.

    Raises:
        UserError: If it is one.
    """
    if spec.kind != "embedding":
        raise UserError(
            f"loss: regression, margin and contrastive compare vectors of texts, and the task is {spec.kind}; "
            "write kind: embedding, or leave the loss out"
        )


def refuse_degrees(pairs: Examples) -> None:
    """Refuse labels that say more than whether a pair matches.

    Raises:
        UserError: If there are more than two.
    """
    if (count := len(_labels(pairs))) > 2:
        raise UserError(
            f"loss: margin: is for pairs that match or do not, and {pairs.name} has {count} different labels; name "
            "loss: regression"
        )


def truths(rows: Rows) -> Tensor:
    """Return the label of every pair, ``[pairs]``."""
    return torch.tensor([float(example["label"]) for example in rows.examples])


def scaled(labels: Tensor, scale: tuple[float, float] | None = None) -> Tensor:
    """Return labels ``[n]`` on a scale from 0 to 1; without ``scale`` the smallest is 0 and the largest 1."""
    low, high = scale or (float(labels.min()), float(labels.max()))
    return ((labels - low) / (high - low)).clamp(0, 1)


def _labels(examples: Examples) -> set[float]:
    return {example["label"] for example in examples if "text_a" in example and "label" in example}
