"""Time several things alternately, so that whatever else the machine does slows all of them alike."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

WARM_UP = 3
"""Untimed rounds before the first timed one."""
FEWEST_ROUNDS = 5
"""Timed rounds even when the time is up."""


def interleave(runs: Mapping[str, Callable[[int], None]], seconds: float) -> dict[str, list[float]]:
    """Run things alternately, each turn in another order, and return the seconds of every run.

    Args:
        runs: What to time by name; it gets the number of the round.
        seconds: Time for each, warm-up apart; every one runs equally often.
    """
    names = list(runs)
    times: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        for number in range(WARM_UP):
            runs[name](number)
    with _no_collection():
        end = time.perf_counter() + seconds * len(names)
        number = 0
        while number < FEWEST_ROUNDS or time.perf_counter() < end:
            shift = number % len(names)
            for name in names[shift:] + names[:shift]:
                start = time.perf_counter()
                runs[name](number)
                times[name].append(time.perf_counter() - start)
            number += 1
    return times


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
