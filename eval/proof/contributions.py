"""What every example, or every group of examples, contributes to a metric that need not be a mean."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from eval.proof.paired_statistics import Metric

MOST_UNITS = 1000
"""Units up to which each is left out once; of more, several are put together at random."""


def units_of(
    examples: int, groups: Sequence[str | int | None] | None = None, most: int = MOST_UNITS, seed: int = 13
) -> list[NDArray[np.int64]]:
    """Return the examples of each unit: of each group, or single examples.

    Args:
        examples: How many examples there are.
        groups: ``[N]``, the group of every example; one of None stands alone. None: every example stands alone.
        most: Of more units than this, several are put together at random.
        seed: Of that chance.
    """
    if groups is None and examples <= most:
        return list(np.arange(examples, dtype=np.int64)[:, None])
    names = [None] * examples if groups is None else list(groups)
    keys = [("alone", place) if name is None else ("group", name) for place, name in enumerate(names)]
    number = {key: unit for unit, key in enumerate(dict.fromkeys(keys))}
    unit = np.array([number[key] for key in keys], dtype=np.int64)
    if len(number) > most:
        unit = (np.random.default_rng(seed).permutation(len(number)) % most)[unit]
    return np.split(np.argsort(unit, kind="stable"), np.cumsum(np.bincount(unit))[:-1])


def contributions(
    metric: Metric, examples: int, units: Sequence[NDArray[np.int64]], count: int | None = None
) -> NDArray[np.float64]:
    """Return the contribution of each unit, so that their mean is about the metric on all examples.

    For a mean over examples this is the mean of each unit, if units are equally large. For any other metric it is the
    pseudo-value of the jackknife: the metric, and what it loses without the unit, times the number of other units. The
    variance of these is never too small on average (Efron and Stein), but too large where many units are the only ones
    of their class; `docs/results/statistics.md` has what that does to the coverage.

    Args:
        metric: Of the examples with given indices.
        examples: How many examples there are.
        units: Indices of the examples of each unit.
        count: How many units there are, if ``units`` are only some of them.

    Source:
        Tukey 1958 (pseudo-values); Efron & Stein 1981, The jackknife estimate of variance, Annals of Statistics 9.
    """
    everything = np.arange(examples, dtype=np.int64)
    whole = metric(everything)
    number = len(units) if count is None else count
    found = np.empty(len(units))
    for place, members in enumerate(units):
        rest = np.delete(everything, members)
        found[place] = whole + (number - 1) * (whole - metric(rest)) if len(rest) else whole
    return found
