"""Agreement of two models' attributions: rank correlation and common top tokens of each text, averaged over texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from eval.attribution.aligned_units import Pair
from eval.metrics.correlation import spearman
from eval.proof.paired_statistics import Interval, Number, paired_bootstrap

LEAST_UNITS = 3
"""Tokens, or words, of the shortest text that is compared; two are ranked alike by chance too often."""
TOP = 5
"""Tokens, or words, that count as a text's most important ones; never more than a third of them."""
SHUFFLES = 20
"""Random orders of each text, whose mean is compared."""
RANDOM = "random order"
"""Names the row that tells what no agreement looks like."""


@dataclass(frozen=True)
class AttributionRow:
    """How alike the attributions of two models are, by one method; intervals are 95% bootstrap intervals over texts.

    Attributes:
        method: Its name; ``random order`` for the model's own attributions, shuffled within each text.
        texts: Texts that were compared.
        correlation: Mean of Spearman's correlation within a text, -1 to 1.
        overlap: Mean share of a text's most important tokens that both models have in common, 0 to 1.
        beyond: That correlation minus the one of random order.
        incomplete: By how much attributions miss the difference that they explain, as a share of it; that of the model
            of the two which misses more. 0 is exact; None where the method explains no difference.
    """

    method: str
    texts: int
    correlation: Interval
    overlap: Interval
    beyond: Interval | None = None
    incomplete: Number | None = None


@dataclass(frozen=True)
class AttributionAgreement:
    """What came of the attributions of a model and of its reference.

    Attributes:
        rows: One for each method that both models allow, then that of random order.
        by: What is ranked: ``tokens``, or ``words`` where the two models have other tokens.
        examples: Texts that were drawn.
        top: Most important tokens of a text, at most.
        baseline: The token that stands in the place of each token of the text where integrated gradients begin.
        steps: Points at which gradients are taken; None for as many as each text needed, 20 to 80.
        seed: Of the texts that are drawn, of random order and of the intervals.
        left_out: Sentences on what could not be compared, without full stops.
    """

    rows: tuple[AttributionRow, ...]
    by: Literal["tokens", "words"]
    examples: int
    top: int
    baseline: str
    steps: int | None
    seed: int
    left_out: tuple[str, ...] = ()


def overlap_of_top(first: NDArray[np.float64], second: NDArray[np.float64], top: int = TOP) -> float:
    """Return the share of the most important tokens of a text that two models have in common.

    Importance is the magnitude of an attribution; of equal ones the earlier token comes first. Of a short text a third
    of the tokens count.

    Args:
        first: Attributions ``[N]``, N of 3 or more.
        second: Those of the other model.
        top: How many count.

    Examples:
        >>> import numpy as np
        >>> overlap_of_top(np.array([3.0, -4.0, 0.1, 0, 0, 0]), np.array([0.2, 5.0, 1.0, 0, 0, 0]))
        0.5
    """
    count = min(top, len(first) // 3)
    best = [set(np.argsort(-np.abs(values), kind="stable")[:count].tolist()) for values in (first, second)]
    return len(best[0] & best[1]) / count


def agreement_rows(
    methods: Mapping[str, Sequence[Pair | None]],
    incomplete: Mapping[str, float],
    groups: Sequence[str | None] | None = None,
    seed: int = 13,
    top: int = TOP,
) -> tuple[AttributionRow, ...]:
    """Return a row for each method, and one for random order; none where no text is long enough.

    Args:
        methods: Name -> for each text the attributions of candidate and reference, aligned; None where there are none.
        incomplete: Name -> ``AttributionRow.incomplete``.
        groups: The group of each text, if they have any: whole groups are drawn.
        seed: Of random order and of the resampling.
        top: See ``overlap_of_top``.
    """
    rows: list[AttributionRow] = []
    chance: AttributionRow | None = None
    for name, pairs in methods.items():
        places = [place for place, pair in enumerate(pairs) if pair is not None and len(pair[0]) >= LEAST_UNITS]
        if not places:
            continue
        own = [pair for place in places if (pair := pairs[place]) is not None]
        drawn = None if groups is None else _named([groups[place] for place in places], places)
        ours, random = _by_text(own, top), _at_random(own, places, seed, top)
        zero = np.zeros(len(own))
        correlation, overlap = (_mean(values, zero, drawn, seed) for values in ours)
        beyond = _mean(ours[0], random[0], drawn, seed)
        rows.append(AttributionRow(name, len(own), correlation, overlap, beyond, incomplete.get(name)))
        if chance is None:
            correlation, overlap = (_mean(values, zero, drawn, seed) for values in random)
            chance = AttributionRow(RANDOM, len(own), correlation, overlap)
    return tuple(rows) if chance is None else (*rows, chance)


def _by_text(pairs: Sequence[Pair], top: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return correlation and overlap of each text, ``[texts]`` each."""
    return (
        np.array([spearman(first, second) for first, second in pairs]),
        np.array([overlap_of_top(first, second, top) for first, second in pairs]),
    )


def _at_random(
    pairs: Sequence[Pair], places: Sequence[int], seed: int, top: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return correlation and overlap of each text, means over random orders of the candidate's attributions."""
    chances = [np.random.default_rng([seed, place]) for place in places]
    each = [
        _by_text(
            [(chance.permutation(first), second) for chance, (first, second) in zip(chances, pairs, strict=True)], top
        )
        for _ in range(SHUFFLES)
    ]
    correlation, overlap = np.mean(each, axis=0)
    return correlation, overlap


def _named(groups: Sequence[str | None], places: Sequence[int]) -> list[str]:
    """Return a name for the group of each text; a text without one is a group by itself."""
    return [f"text {place}" if group is None else f"group {group}" for group, place in zip(groups, places, strict=True)]


def _mean(
    values: NDArray[np.float64], others: NDArray[np.float64], groups: Sequence[str] | None, seed: int
) -> Interval:
    """Return the mean of differences by text, with its interval."""
    pair = (lambda rows: float(values[rows].mean()), lambda rows: float(others[rows].mean()))
    return paired_bootstrap([pair], len(values), groups=None if groups is None else list(groups), seed=seed).difference
