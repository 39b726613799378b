"""Siamese encoders: one network reads both texts of a pair, and a loss compares their vectors.

Each text is a row of its own, and the rows of a pair stand in one batch. Which loss is which is said in
``teachers.losses.catalogue``, which pairs they learn from in ``teachers.data.example_pairs``; here are their formulas.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (the field's own abbreviation)

from eval.errors import UserError
from teachers.data.encoded_dataset import Batch, EncodedDataset
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

    def __init__(self, name: str, rows: EncodedDataset, compare: Compare, whole_batch: bool = False) -> None:
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
    """Return ``mean (cos(u, v) - y)²`` (Reimers and Gurevych 2019, arXiv 1908.10084).

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

    Hadsell, Chopra, LeCun 2006, "Dimensionality reduction by learning an invariant mapping".

    Args:
        first: Vectors ``[n, d]``.
        second: Vectors ``[n, d]``.
        matches: 1 for pairs that match, 0 for others, ``[n]``.
        margin: Distance from which others are left alone.

    Examples:
        >>> import torch
        >>> first, second = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]])
        >>> round(margin_contrast(first, second, torch.tensor([1]), margin=1.0).item(), 4)
        1.0
    """
    squares = (F.normalize(first, dim=-1) - F.normalize(second, dim=-1)).square().sum(dim=-1)
    apart = (margin - squares.clamp(min=1e-12).sqrt()).clamp(min=0).square()
    matches = matches.to(first)
    return (matches * squares + (1 - matches) * apart).mean() / 2


def cosines(first: Tensor, second: Tensor) -> Tensor:
    """Return the cosine of every vector of ``[n, d]`` with every one of ``[m, d]``, ``[n, m]``."""
    return F.normalize(first, dim=-1) @ F.normalize(second, dim=-1).T


def in_batch_negatives(first: Tensor, second: Tensor, temperature: float, left_out: Tensor | None = None) -> Tensor:
    """Return the cross-entropy of each first text's choice among all second texts, a scalar; its own is right.

    Henderson et al. 2017, arXiv 1705.00652, with cosines in the place of inner products; InfoNCE of van den Oord, Li,
    Vinyals 2018, arXiv 1807.03748.

    Args:
        first: Vectors ``[n, d]``.
        second: Vectors ``[m, d]``; the first n are those of the first texts' own, others are more to choose from.
        temperature: Divides the cosines.
        left_out: Second texts that are no choice of a first text, such as further right ones, ``[n, m]``.

    Examples:
        >>> import torch
        >>> round(in_batch_negatives(torch.eye(2), torch.eye(2), temperature=1.0).item(), 4)
        0.3133
    """
    scores = cosines(first, second) / temperature
    if left_out is not None:
        scores = scores.masked_fill(left_out, -torch.inf)
    return F.cross_entropy(scores, torch.arange(len(first), device=first.device))


def truths(rows: EncodedDataset) -> Tensor:
    """Return the label of every pair, ``[pairs]``."""
    return torch.tensor([float(example["label"]) for example in rows.examples])


def scaled(labels: Tensor, scale: tuple[float, float] | None = None) -> Tensor:
    """Return labels ``[n]`` on a scale from 0 to 1; without ``scale`` the smallest is 0 and the largest 1."""
    low, high = scale or (float(labels.min()), float(labels.max()))
    return ((labels - low) / (high - low)).clamp(0, 1)
