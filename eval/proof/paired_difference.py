"""The difference of two models on the same examples, for any metric: interval, p-values, examples that a margin needs.

Tango's score test looks at the examples on which two models differ. Here it is carried over to metrics that are no
share of right examples: every unit (an example or a group) contributes to the difference, and effective units that
all change as much stand for them, with the same second and third moment of what they change. So a few units that carry
much of a metric count as the few they are. For 0/1 scores of single examples these numbers are the counts, and the
interval is Tango's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray

from eval.proof.paired_proportions import Discordance, examples_needed, limits, score, smallest_margin
from eval.proof.paired_statistics import Interval
from eval.proof.student_t import quantile, survival

NO_EFFECT = 1e-9
"""A contribution below this share of the largest possible one counts as none."""


@dataclass(frozen=True)
class PairedDifference:
    """Candidate minus reference.

    Attributes:
        value: The difference on all examples, a mean over seeds.
        counts: Effective numbers of units on which the candidate or the reference is better.
        effect: What one such unit changes, as if it were all units.
        shift: The difference less that of the effective units; 0 for single examples that are right or wrong.
        freedom: Degrees of freedom of the units; infinity for single examples that are right or wrong.
        by_seed: The difference of each seed.
    """

    value: float
    counts: Discordance
    effect: float
    freedom: float
    shift: float = 0.0
    by_seed: tuple[float, ...] = ()

    @classmethod
    def of(
        cls, candidate: NDArray[np.float64], reference: NDArray[np.float64], by_seed: Sequence[float], binary: bool
    ) -> PairedDifference:
        """Make it of the contributions of each unit.

        Args:
            candidate: ``[seeds, units]`` of the candidate, see ``eval.proof.contributions``.
            reference: ``[seeds, units]`` of the reference.
            by_seed: The difference of each seed on all examples.
            binary: Whether the units are single examples that are right or wrong, so that the test is Tango's.
        """
        units, value = candidate.shape[1], fmean(by_seed)
        between = (candidate - reference).mean(axis=0)
        if units < 2 or not (np.isfinite(between).all() and math.isfinite(value)):
            return cls(value, Discordance(max(units, 1), 0, 0), math.nan, math.nan, by_seed=tuple(by_seed))
        # What a unit changes: of those that differ, and of all, if one of the models lost everything.
        size, square = np.abs(between), np.square(between)
        everything = max((_effect(np.abs(side)) for side in (*candidate, *reference) if side.any()), default=1.0)
        # As if one more unit differed by so much, which was not seen; it fades as units are seen to differ.
        unseen = 1 / (np.count_nonzero(size > NO_EFFECT * everything) + 1) ** 3
        effect = _effect(np.append(size, everything), np.append(np.ones(units), unseen))
        better, worse = (float(square[side].sum()) / effect**2 for side in (between > 0, between < 0))
        freedom = math.inf if binary and len(by_seed) == 1 else units - 1.0
        shift = value - effect * (better - worse) / units
        return cls(value, Discordance(units, better, worse), effect, freedom, shift, tuple(by_seed))

    @property
    def known(self) -> bool:
        """Whether there is an interval: the metric exists, and there are two units or more."""
        return math.isfinite(self.effect)

    def of_these_models(self, confidence: float = 0.95) -> Interval:
        """Return the interval that holds for these very models on other examples."""
        if not self.known:
            return Interval(self.value, math.nan, math.nan)
        ends = limits(self.counts, quantile((1 + confidence) / 2, self.freedom))
        low, high = (self.shift + self.effect * end for end in (ends.low, ends.high))
        return Interval(self.value, low, high)

    def interval(self, confidence: float = 0.95) -> Interval:
        """Return the interval on other examples; with several seeds also for training anew.

        The distances of both ends from the value are those of the examples and of a t-interval over the seeds, added
        as squares, so that the interval is never narrower than either.

        Source:
            Zou & Donner 2008, Construction of confidence limits about effect measures, Statistics in Medicine 27.
        """
        found = self.of_these_models(confidence)
        seeds = quantile((1 + confidence) / 2, len(self.by_seed) - 1) * self._seed_error if self._seed_error else 0.0
        low, high = (math.hypot(self.value - end, seeds) for end in (found.low, found.high))
        return Interval(self.value, self.value - low, self.value + high)

    @cached_property
    def _seed_error(self) -> float:
        """Standard error of the mean over seeds, examples being what they are."""
        return stdev(self.by_seed) / math.sqrt(len(self.by_seed)) if len(self.by_seed) > 1 else 0.0

    def p_value(self, at: float = 0.0) -> float:
        """Return the one-sided p-value of "the true difference is ``at`` or less"; NaN where there is no interval."""
        if not self.known:
            return math.nan
        if not self._seed_error:
            return survival(score(self.counts, max(-1.0, min(1.0, (at - self.shift) / self.effect))), self.freedom)
        low, high = 0.0, 1.0  # the p-value is the tail at which the end of the interval is ``at``
        while high - low > 1e-6 * high:
            tail = (low + high) / 2
            found = self.interval(1 - 2 * min(tail, 1 - tail))
            above = (found.low if tail < 0.5 else found.high) > at
            low, high = (low, tail) if above else (tail, high)
        return high

    def units_needed(self, margin: float) -> int | None:
        """Return how many units would show the margin in four of five cases, if the models were equally good.

        They are taken to differ as often and by as much as here. None with several seeds, whose spread more units do
        not make smaller.
        """
        if not self.known or self._seed_error or not 0 < margin < self.effect:
            return None
        return examples_needed(self.counts.share, margin / self.effect)

    def smallest_margin(self, confidence: float = 0.95) -> float:
        """Return the smallest margin that these units would show as often; NaN without an interval or of more seeds."""
        known = self.known and not self._seed_error
        return self.effect * smallest_margin(self.counts, confidence=confidence) if known else math.nan


def _effect(sizes: NDArray[np.float64], weights: NDArray[np.float64] | float = 1.0) -> float:
    """Return the one size whose second and third moment are in the proportion of those of sizes of 0 and more."""
    return float((weights * sizes**3).sum() / (weights * sizes**2).sum())
