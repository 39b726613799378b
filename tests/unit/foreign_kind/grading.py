"""A kind of task of another package: grades from 0 to 4, learned as four yes-or-no questions in order.

Source: Cao, Mirjalili, Raschka 2020, arXiv 1901.07884, without the shared weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from eval.examples import Answer, Array, Asks, Example, Feature, Reads
from eval.kinds.kind import Kind
from eval.kinds.values import BadItemError, LabelReader
from eval.metrics import scorers
from eval.metrics.scorers import Metric, Prepare, Values

if TYPE_CHECKING:
    from torch import Tensor

BEST = 4


class Grading(Kind):
    """A whole number from 0 to ``BEST``: how many questions "is it better than k?" are answered with yes."""

    name = "grading"
    metric = "exact"
    meaning = "a grade from 0 to 4 for a text"
    answer = "a grade from 0 to 4 for a text or a pair of texts"

    def read_truth(self, value: Any, example: Example, labels: LabelReader) -> int:
        """Return the grade."""
        grade = labels.score(value)
        if grade not in range(BEST + 1):
            raise BadItemError(f"'label' must be a grade from 0 to {BEST}, not {value!r}")
        return int(grade)

    def outputs(self, labels: Sequence[str]) -> int:
        """Return the number of questions."""
        return BEST

    def one_answer(self, settings: Reads, logits: Array) -> Answer:
        """Return how many questions are answered with yes."""
        return {"grade": int((logits > 0).sum())}

    def regret(self, settings: Reads, feature: Feature, expected: Array, found: Array) -> Array:
        """Compare the answers to the questions."""
        return np.where((expected > 0) == (found > 0), 0.0, np.abs(expected))

    def metrics(self) -> tuple[Metric, ...]:
        """Return the shares of grades that are right, and that are wrong by one at most."""
        return (Metric("exact", _within(0)), Metric("near", _within(1)))

    def values(self, spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> Values:
        """Return 1 for each right grade."""
        return (_errors(answers, examples) == 0).astype(np.float64)

    def agreement(self, pairs: Sequence[tuple[Answer, Answer]]) -> dict[str, float]:
        """Return the share of equal grades."""
        return {"grades": scorers.share(a["grade"] == b["grade"] for a, b in pairs)}

    def target(self, spec: Asks, feature: Feature, example: Example, left: bool) -> float:
        """Return the grade, NaN without one."""
        return float(example.get("label", np.nan))

    def padded(
        self, targets: Sequence[Any], places: Sequence[slice], length: int, inputs: Sequence[int]
    ) -> dict[str, Array]:
        """Return the grades."""
        return {"labels": np.array(targets, dtype=np.float32)}

    def loss(self, spec: Asks, logits: Tensor, targets: Mapping[str, Tensor], mask: Tensor) -> Tensor:
        """Return the mean binary cross-entropy of the questions."""
        import torch
        from torch.nn import functional

        grades = targets["labels"]
        known = ~grades.isnan()
        if not bool(known.any()):
            return logits.sum() * 0.0
        above = (grades[known, None] > torch.arange(BEST, device=grades.device)).float()
        return functional.binary_cross_entropy_with_logits(logits[known], above)

    def counted(self, spec: Asks, labels: Tensor) -> Tensor:
        """Return how many grades are known."""
        return (~labels.isnan()).sum()

    def soft_pairs(
        self,
        student: Tensor,
        teacher: Tensor,
        targets: Mapping[str, Tensor],
        mask: Tensor,
        only_predicted: bool = False,
    ) -> list[tuple[Tensor, Tensor]]:
        """Return a pair of two-class logits for each question."""
        import torch

        def both(logits: Tensor, question: int) -> Tensor:
            yes = logits[:, question]
            return torch.stack([torch.zeros_like(yes), yes], dim=-1)

        return [(both(student, k), both(teacher, k)) for k in range(BEST)]


def _errors(answers: Sequence[Answer], examples: Sequence[Example]) -> Values:
    return np.array([abs(a["grade"] - e["label"]) for a, e in zip(answers, examples, strict=True)], dtype=np.float64)


def _within(allowed: int) -> Prepare:
    return lambda spec, answers, examples: scorers.mean((_errors(answers, examples) <= allowed).astype(np.float64))
