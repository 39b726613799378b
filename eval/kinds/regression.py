"""Regression: a number for a text or a pair of texts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from eval.examples import Answer, Array, Asks, Example, Feature, Reads
from eval.kinds.kind import Kind
from eval.kinds.values import LabelReader, written_number
from eval.metrics import scorers
from eval.metrics.correlation import pearson
from eval.metrics.scorers import Metric, Values

if TYPE_CHECKING:
    from torch import Tensor

SCORE_MARGIN = 0.05
"""Scores agree when they differ by at most this share of the largest."""


class Regression(Kind):
    """A number, learned by squared error."""

    name = "regression"
    problem_type = "regression"
    number = True
    metric = "spearman"
    predicted = "score"
    meaning = "one number for a text or a pair of texts"
    answer = "a number for a text or a pair of texts"
    no_page = ""

    def parsed(self, name: str, cell: str, values: Mapping[str, Any]) -> Any:
        """Return the number of a cell with the label."""
        del values
        return written_number(cell) if name == self.truth else cell

    def read_truth(self, value: Any, example: Example, labels: LabelReader) -> float:
        """Return the number, or the one that a label's name stands for."""
        del example
        return labels.score(value)

    def outputs(self, labels: Sequence[str]) -> int:
        """Return 1."""
        del labels
        return 1

    def fits_head(self, labels: Sequence[str], problem_type: str | None) -> bool:
        """Return whether the head has one output."""
        return len(labels) == 1 and problem_type in (None, self.problem_type)

    def one_answer(self, settings: Reads, logits: Array) -> Answer:
        """Return the number as ``score``."""
        del settings
        return {"score": float(logits[0])}

    def regret(self, settings: Reads, feature: Feature, expected: Array, found: Array) -> Array:
        """Return how far the numbers are apart."""
        del settings, feature
        return np.asarray(np.abs(expected - found))

    def tie(self, scale: float) -> float:
        """Return the difference that still counts as equal."""
        return SCORE_MARGIN * scale

    def metrics(self) -> tuple[Metric, ...]:
        """Correlations; the squared error is only reported."""
        return (
            Metric("spearman", scorers.spearman),
            Metric("pearson", scorers.pearson),
            Metric("mse", scorers.mean_squared_error, decides=False),
        )

    def values(self, spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> Values:
        """Return the negative squared error of each example."""
        del spec
        predicted, true = scorers.score_pairs(answers, examples)
        return -((predicted - true) ** 2)

    def agreement(self, pairs: Sequence[tuple[Answer, Answer]]) -> dict[str, float]:
        """Return ``pearson`` and ``largest_difference``, in units of the score."""
        first, second = [a["score"] for a, _ in pairs], [b["score"] for _, b in pairs]
        largest = max((abs(x - y) for x, y in zip(first, second, strict=True)), default=float("nan"))
        return {"pearson": pearson(first, second), "largest_difference": float(largest)}

    def told_apart(
        self, gold: Sequence[Example], answers: Sequence[Sequence[Answer]], examples: Sequence[Example] | None
    ) -> dict[int, list[str]]:
        """Return where numbers differ by more than ``SCORE_MARGIN`` of the largest."""
        del examples
        numbers = np.array([[answer["score"] for answer in given] for given in answers])
        differ = np.ptp(numbers, axis=0) > self.tie(float(np.abs(numbers).max(initial=0.0)))
        return {
            place: [f"{value:.3f}" for value in (gold[place]["label"], *numbers[:, place])]
            for place in np.flatnonzero(differ).tolist()
        }

    def target(self, spec: Asks, feature: Feature, example: Example, left: bool) -> float:
        """Return the number, NaN without one."""
        del spec, feature, left
        return float(example.get("label", math.nan))

    def loss(self, spec: Asks, logits: Tensor, targets: Mapping[str, Tensor], mask: Tensor) -> Tensor:
        """Return the mean squared error."""
        from torch.nn import functional

        del spec, mask
        scores, labels = logits[:, 0], targets["labels"]
        known = ~labels.isnan()
        return functional.mse_loss(scores[known], labels[known]) if bool(known.any()) else scores.sum() * 0.0

    def counted(self, spec: Asks, labels: Tensor) -> Tensor:
        """Return how many numbers there are."""
        del spec
        return (~labels.isnan()).sum()

    def combined(self, members: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
        """Return the weighted mean of the numbers."""
        del mask
        return (weights * members).sum(dim=0)
