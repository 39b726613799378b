"""Ranges of activations from what was seen of them: a histogram of fixed size, and four ways to cut its tails."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from compress.modules.int8_scheme import affine

Array = NDArray[Any]
Method = Literal["min_max", "percentile", "entropy", "mse"]
Key = TypeVar("Key", bound=Hashable)
BINS = 4096
"""Bins of a histogram, half of them below 0."""
CANDIDATES = 128
"""Thresholds that ``entropy`` and ``mse`` try."""
STEPS = 255
"""Steps of 8 bits."""
LITTLE = 1e-4
"""Mass that ``entropy`` gives to empty places, so that no logarithm is infinite."""


class Histogram:
    """Counts of all values seen, in ``BINS`` bins over [-R, R]; R is a power of 2 and doubles when a value exceeds it.

    Two neighbouring bins then become one, so memory is bounded, and the order of the values does not matter as long
    as the first tensor is not all zeros.

    Attributes:
        counts: int64 ``[BINS]``.
        limit: R.
        low: Least value seen.
        high: Largest.

    Examples:
        >>> import numpy as np
        >>> seen = Histogram()
        >>> seen.add(np.array([[-0.5, 0.25], [1.0, 3.0]], dtype=np.float32))
        >>> seen.range("min_max")
        (-0.5, 3.0)
    """

    def __init__(self) -> None:
        self.counts = np.zeros(BINS, np.int64)
        self.limit, self.low, self.high = 0.0, 0.0, 0.0

    def add(self, values: Array) -> None:
        """Count the values of a tensor of any shape."""
        self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))
        largest = max(-self.low, self.high)
        if not self.limit and largest > 0:
            self.limit = float(2.0 ** np.ceil(np.log2(largest)))
        while largest > self.limit:
            pairs = self.counts.reshape(-1, 2).sum(axis=1)
            self.counts = np.pad(pairs, BINS // 4)
            self.limit *= 2
        if self.limit:
            places = ((values.reshape(-1) / self.limit + 1) * (BINS / 2)).astype(np.int64)
            self.counts += np.bincount(np.clip(places, 0, BINS - 1), minlength=BINS)

    @property
    def middles(self) -> Array:
        """The value in the middle of each bin."""
        return (np.arange(BINS) + 0.5) * (2 * self.limit / BINS) - self.limit

    def range(self, method: Method, percentile: float = 99.99) -> tuple[float, float]:
        """Return least and largest value of the 8-bit range.

        Args:
            method: ``min_max`` cuts nothing; ``percentile`` cuts what lies outside of it at either end; ``mse`` and
                ``entropy`` cut both ends at the threshold with the least squared error, or the least KL divergence.
            percentile: 50 to 100.
        """
        if method == "min_max" or not self.limit:
            return self.low, self.high
        if method == "percentile":
            return self._within(*percentiles(self.counts, self.limit, percentile))
        chosen = least_error if method == "mse" else least_divergence
        threshold = chosen(self)
        return self._within(-threshold, threshold)

    def _within(self, low: float, high: float) -> tuple[float, float]:
        return max(low, self.low), min(high, self.high)


def percentiles(counts: Array, limit: float, percentile: float) -> tuple[float, float]:
    """Return the edges of the bins outside of which lie at most ``100 - percentile`` per cent at either end.

    Args:
        counts: Of bins of equal width over [-limit, limit], ``[n]``.
        limit: Upper edge of the last bin.
        percentile: 50 to 100.
    """
    tail = counts.sum() * (1 - percentile / 100)
    below, above = np.cumsum(counts), np.cumsum(counts[::-1])
    width = 2 * limit / len(counts)
    first = int(np.searchsorted(below, tail, side="right"))
    last = int(np.searchsorted(above, tail, side="right"))
    return first * width - limit, limit - last * width


def least_error(seen: Histogram) -> float:
    """Return the threshold with the least ``Σ count · (x - quantized x)²``."""
    largest, x = max(-seen.low, seen.high), seen.middles
    thresholds = largest * np.arange(1, CANDIDATES + 1) / CANDIDATES
    errors = []
    for threshold in thresholds:
        scale, zero = affine(max(seen.low, -threshold), min(seen.high, threshold))
        rounded = scale * (np.clip(np.rint(x / scale) + zero, 0, STEPS) - zero)
        errors.append(float((seen.counts * (x - rounded) ** 2).sum()))
    return float(thresholds[int(np.argmin(errors))])


def least_divergence(seen: Histogram) -> float:
    """Return the threshold whose 8-bit distribution has the least KL divergence from the cut one (TensorRT's way)."""
    half = BINS // 2
    last = int(np.ceil(max(-seen.low, seen.high) / seen.limit * half))
    first = min(last, STEPS // 2 + 1)
    sizes = np.unique(np.linspace(first, last, CANDIDATES).round().astype(int))
    divergences = [divergence(seen.counts, int(size)) for size in sizes]
    return float(sizes[int(np.argmin(divergences))] * seen.limit / half)


def divergence(counts: Array, size: int, steps: int = STEPS) -> float:
    """Return ``KL(p ‖ q)`` for a histogram cut ``size`` bins to either side of its middle.

    p has what was cut off in its outermost bins. q has in each of ``steps`` equal parts their mean, where p is not 0.

    Args:
        counts: ``[n]``, n even.
        size: Bins kept a side.
        steps: Parts of q; no more than 2 · size.
    """
    middle = len(counts) // 2
    kept = counts[middle - size : middle + size].astype(np.float64)
    p = kept.copy()
    p[0] += counts[: middle - size].sum()
    p[-1] += counts[middle + size :].sum()
    starts = np.arange(min(steps, len(kept))) * len(kept) // min(steps, len(kept))
    parts = np.diff([*starts, len(kept)])
    sums = np.add.reduceat(kept, starts)
    filled = np.add.reduceat((p > 0).astype(np.float64), starts)
    q = np.repeat(sums / np.maximum(filled, 1), parts) * (p > 0)
    p, q = (np.where(mass > 0, mass / mass.sum(), 0) for mass in (p, q))
    here = p > 0
    return float((p[here] * np.log(p[here] / np.maximum(q[here], LITTLE / len(kept)))).sum())


def smoothing(activations: Array, weights: Array, strength: float) -> Array:
    """Return ``max|x_j|^a / max|w_j|^(1 - a)`` for each channel j, ``[n]``; 1 where either is 0 (SmoothQuant).

    Args:
        activations: max|x| of each channel ``[n]``.
        weights: max|w| of the row of each channel ``[n]``.
        strength: a, 0 to 1; how much of the difficulty moves to the weights.

    Examples:
        >>> import numpy as np
        >>> smoothing(np.array([4.0, 1.0]), np.array([1.0, 0.25]), strength=0.5)
        array([2., 2.], dtype=float32)
    """
    known = (activations > 0) & (weights > 0)
    x, w = (np.where(known, values, 1.0).astype(np.float64) for values in (activations, weights))
    return np.where(known, x**strength / w ** (1 - strength), 1.0).astype(np.float32)


def together(names: Mapping[Key, Iterable[str]]) -> dict[Key, int]:
    """Return each layer's group: layers are in one if a chain of names that two of them have in common connects them.

    Examples:
        >>> together({"query": ("x", "q"), "key": ("x", "k"), "again": ("y", "k"), "dense": ("z", "d")})
        {'query': 0, 'key': 0, 'again': 0, 'dense': 1}
    """
    groups: list[set[str]] = []
    for own in names.values():
        joined = set(own).union(*(group for group in groups if not group.isdisjoint(own)))
        groups = [*(group for group in groups if group.isdisjoint(own)), joined]
    return {name: next(n for n, group in enumerate(groups) if not group.isdisjoint(own)) for name, own in names.items()}
