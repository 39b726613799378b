"""Two models' predictions of the same examples: the difference of their scores, with the units that it is tested by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from eval.examples import Answer, Example
from eval.proof.contributions import MOST_UNITS, contributions, units_of
from eval.proof.paired_difference import PairedDifference
from eval.scores import metric_of, per_example, resampler

Groups = Sequence[str | None]
Method = Literal["score interval", "score interval by group"]


@dataclass(frozen=True)
class PairedScores:
    """What comes of two models' predictions.

    Attributes:
        difference: Candidate minus reference, with its interval and p-values.
        scores: ``[pairs, 2]``, the metric of candidate and reference.
        units: Examples, or groups of them, that were compared.
        parts: ``[2, pairs, units]``, what each contributes to the metric of candidate and reference; NaN where nothing
            shows that the metric exists.
    """

    difference: PairedDifference
    scores: NDArray[np.float64]
    units: int
    parts: NDArray[np.float64]

    def examples_needed(self, margin: float, examples: int) -> int | None:
        """Return how many examples would show the margin in four of five cases, in groups as large as those of these.

        Args:
            margin: Loss that is allowed, in units of the metric.
            examples: How many were compared.
        """
        needed = self.difference.units_needed(margin)
        return None if needed is None else math.ceil(needed * examples / self.units)


def method_for(grouped: bool) -> Method:
    """Return the name of the test: whole groups are compared where examples have any."""
    return "score interval by group" if grouped else "score interval"


def paired_scores(
    asked: Any,
    pairs: Sequence[tuple[Sequence[Answer], Sequence[Answer]]],
    gold: Sequence[Example],
    groups: Groups | None = None,
    seed: int = 13,
) -> PairedScores:
    """Score predictions and compare them.

    Where no unit contributes anything to the metric of any model, the difference has no interval: a metric that does
    not exist is 0 as well (``eval.scores``), so 0 against 0 shows nothing. A share of right examples always exists.

    Args:
        asked: The ``TaskSpec``, or whatever has its ``kind``, ``labels``, ``metric`` and ``pair``.
        pairs: Predictions of candidate and reference, for each training seed.
        gold: The truths, one an example.
        groups: The group of each example; None where all stand alone.
        seed: Which examples are put together where there are too many to leave out each.

    Raises:
        UserError: There is nothing to score, or the metric is none of the task.
    """
    number, everything = len(gold), np.arange(len(gold), dtype=np.int64)
    proportion = metric_of(asked).proportion
    binary = groups is None and proportion
    units = units_of(number, groups, number if binary else MOST_UNITS, seed)
    scores = np.empty((len(pairs), 2))
    parts = np.empty((2, len(pairs), len(units)))
    for row, sides in enumerate(pairs):
        for side, answers in enumerate(sides):
            metric = resampler(asked, answers, gold)
            scores[row, side] = metric(everything)
            parts[side, row] = per_example(asked, answers, gold) if binary else contributions(metric, number, units)
    if not proportion and not parts.any():
        parts[:] = math.nan
    by_seed = (scores[:, 0] - scores[:, 1]).tolist()
    return PairedScores(PairedDifference.of(parts[0], parts[1], by_seed, binary), scores, len(units), parts)
