"""What every rule of augmentation is: it looks at all sentences once and then draws changed ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

from compress.augment.sentence import Sentence

Draw = Callable[[int, Random], Sentence]
"""Returns a changed form of the sentence with this index; all chance comes from the given source."""


class Rule(Protocol):
    """One way of changing sentences.

    Attributes:
        name: As recipes call it.
        keeps_label: Whether a copy is still answered like its original; if not, copies have no label and a teacher
            answers them.
    """

    @property
    def name(self) -> str:
        """As recipes call it."""
        ...

    @property
    def keeps_label(self) -> bool:
        """Whether a copy keeps the label of its original."""
        ...

    def members(self, copy: int) -> tuple[int, ...]:
        """Return which texts of a pair the copy with this number (from 1) changes."""
        ...

    def fit(self, sentences: Sequence[Sentence]) -> Draw:
        """Look at every sentence once and return what draws changed ones."""
        ...
