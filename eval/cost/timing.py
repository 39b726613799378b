"""Time several things alternately, so that whatever else the machine does slows all of them alike.

A *round* runs everything once, or the same number of times, in an order that is drawn anew for every round. Rounds go
on until they agree with each other, or a stated time is over; what is reported is the median over rounds with an
interval of order statistics, whose coverage is exact for any number of rounds and any distribution (David & Nagaraja,
Order Statistics, 2003, section 7.1).
"""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eval.progress.stages import advance, under_way

Times = NDArray[np.float64]
"""Seconds ``[rounds, runs of a round]``."""

WARM_UP = 3
"""Untimed runs before the first timed one."""
FEWEST_ROUNDS = 6
"""Timed rounds even when the time is up: the fewest whose extremes hold the median in 95% of cases."""
USUAL_ROUNDS = 20
"""Rounds that the slowest gets in its time; what is faster runs as often, so each round is made of several runs."""
STEADY = 0.1
"""Interquartile range of the rounds, relative to their median, under which they agree."""
LONGEST = 2.0
"""Times of the given seconds after which rounds end whether they agree or not."""


def interleave(
    runs: Mapping[str, Callable[[int], float | None]],
    seconds: float,
    *,
    a_round: int | None = None,
    seed: int = 13,
    name: str = "timing",
) -> dict[str, Times]:
    """Run things alternately, in a random order in each round, and return the seconds of every run.

    Rounds go on for ``seconds`` for each thing, and on until the rounds of each agree (``spread`` under ``STEADY``), at
    most ``LONGEST`` times as long.

    Args:
        runs: What to time by name; it gets the number of the run, from 0 on. It may return its own seconds, if it runs
            elsewhere.
        seconds: Time for each, warm-up apart; every one runs equally often.
        a_round: Runs of each thing in a round; by default so many that the slowest gets ``USUAL_ROUNDS``.
        seed: Seeds the order.
        name: What progress calls it.

    Returns:
        For each name the seconds of its runs, ``[rounds, runs of a round]``.
    """
    order, names = random.Random(seed), list(runs)
    warm = {each: [_timed(runs[each], number) for number in range(WARM_UP)] for each in names}
    slowest = max(min(taken) for taken in warm.values())
    count = a_round or max(1, int(seconds / (USUAL_ROUNDS * slowest)) if slowest > 0 else 1)
    times: dict[str, list[list[float]]] = {each: [] for each in names}
    whole = max(1, math.ceil(seconds * len(names)))
    with _no_collection(), under_way(name, whole) as work:
        start = time.perf_counter()
        number = 0
        while True:
            spent = (time.perf_counter() - start) / len(names)
            if number >= FEWEST_ROUNDS and (
                spent >= LONGEST * seconds or (spent >= seconds and all(map(_steady, times.values())))
            ):
                break
            order.shuffle(names)
            for each in names:
                times[each].append([_timed(runs[each], number * count + run) for run in range(count)])
            number += 1
            advance(work, min(whole, int(time.perf_counter() - start)), f"round {number}")
    return {each: np.array(times[each]) for each in runs}


def _timed(run: Callable[[int], float | None], number: int) -> float:
    start = time.perf_counter()
    own = run(number)
    return time.perf_counter() - start if own is None else own


def _steady(rounds: Sequence[Sequence[float]]) -> bool:
    return spread(np.median(np.array(rounds), axis=1)) < STEADY


def spread(values: Sequence[float] | NDArray[Any]) -> float:
    """Return the interquartile range relative to the median.

    Example:
        >>> spread([1.0, 2.0, 3.0, 4.0, 5.0])
        0.6666666666666666
    """
    low, middle, high = (float(value) for value in np.percentile(values, [25, 50, 75]))
    return (high - low) / middle if middle > 0 else 0.0


@dataclass(frozen=True)
class Median:
    """A median over rounds with its interval.

    Attributes:
        value: The median.
        low: Lower end of the interval.
        high: Upper end.
        coverage: How often such an interval holds the true median; below what was asked where rounds are too few.
        rounds: Rounds behind it.
    """

    value: float
    low: float
    high: float
    coverage: float
    rounds: int


def median_interval(values: Sequence[float] | NDArray[Any], confidence: float = 0.95) -> Median:
    """Return the median with the narrowest symmetric interval of order statistics that covers it often enough.

    From the k-th smallest of n values to the k-th largest it holds the true median unless fewer than k values fall on
    one side: its coverage is 1 - 2 P(Binomial(n, 1/2) < k). With five values even their extremes cover 93.75% only.

    Args:
        values: One for each round, at least one.
        confidence: Coverage that is asked for; where there are too few values, the extremes are given.

    Example:
        >>> median_interval([5.0, 1.0, 4.0, 2.0, 3.0])
        Median(value=3.0, low=1.0, high=5.0, coverage=0.9375, rounds=5)
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    count = len(ordered)
    outside, place = 0, 0  # 2^n P(fewer than place + 1 values on one side), and the place of the lower end
    total = 0
    for below in range((count - 1) // 2 + 1):
        total += math.comb(count, below)
        if below and 1 - 2 * total / 2**count < confidence:
            break
        outside, place = total, below
    coverage = max(0.0, 1 - 2 * outside / 2**count)
    return Median(float(np.median(ordered)), float(ordered[place]), float(ordered[count - 1 - place]), coverage, count)


def paired_ratio(
    slower: Sequence[float] | NDArray[Any], faster: Sequence[float] | NDArray[Any], confidence: float = 0.95
) -> Median:
    """Return the median of the ratios of the same rounds, with its interval; what slowed both in a round cancels.

    Args:
        slower: One value for each round.
        faster: Those of the other in the same rounds.
        confidence: See ``median_interval``.
    """
    return median_interval(np.array(slower) / np.array(faster), confidence)


@contextmanager
def _no_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
