"""Words in their order, and which of them may still be hidden: runs of them are taken and never touch each other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

TRIES = 8
"""Places that are tried at random before all that are left are looked for."""


class FreeWords:
    """Words of which runs are taken until nothing fits any more.

    A run holds no place that is not a word's, and between two runs at least one place stays as it is.

    Args:
        words: The places of each word, in order.
    """

    def __init__(self, words: Sequence[Sequence[int]]) -> None:
        self.words = words
        self.ends = [0, *accumulate(map(len, words))]
        self.closed = [False] * len(words)

    @property
    def mean_size(self) -> float:
        """Places of a word, on average; there is one at the least."""
        return self.ends[-1] / len(self.words)

    def take(self, length: int, most: int, chance: np.random.Generator) -> list[int]:
        """Take a run, all that fit with the same chance; a length that fits nowhere gives way to the next shorter one.

        Args:
            length: Its words.
            most: Most places.
            chance: The source of chance.

        Returns:
            Its places; none if not even one word fits.
        """
        for count in range(min(length, len(self.words)), 0, -1):
            starts = len(self.words) - count + 1
            tried = (start for start in chance.integers(starts, size=TRIES).tolist() if self._fits(start, count, most))
            start = next(tried, None)
            if start is None:
                left = [start for start in range(starts) if self._fits(start, count, most)]
                start = left[chance.integers(len(left))] if left else None
            if start is not None:
                return self._taken(start, start + count)
        return []

    def _fits(self, start: int, count: int, most: int) -> bool:
        end = start + count
        size = self.ends[end] - self.ends[start]
        together = self.words[end - 1][-1] - self.words[start][0] + 1 == size
        return size <= most and together and not any(self.closed[start:end])

    def _taken(self, start: int, end: int) -> list[int]:
        run = [place for word in self.words[start:end] for place in word]
        self.closed[start:end] = [True] * (end - start)
        if start and self.words[start - 1][-1] == run[0] - 1:
            self.closed[start - 1] = True
        if end < len(self.words) and self.words[end][0] == run[-1] + 1:
            self.closed[end] = True
        return run
