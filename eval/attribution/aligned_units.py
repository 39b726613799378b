"""Attributions of two models to the tokens of a text, made comparable: by token, or by word where tokens differ."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eval.examples import TEXT, TEXTS

Span = tuple[int, int, int]
"""Which text of an example, from 0, and its (start, end) characters."""
Pair = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Attributions of candidate and reference to the same tokens, or words, of a text, ``[N]`` each."""


@dataclass(frozen=True)
class Attributed:
    """The attributions of one model to the tokens of one example.

    Attributes:
        ids: Token ids, special tokens included.
        spans: Where each token stands; None for special tokens, which are not ranked.
        values: Attribution of each token, ``[tokens]``.
    """

    ids: Sequence[int]
    spans: Sequence[Span | None]
    values: NDArray[np.float64]

    def same_tokens(self, other: Attributed) -> bool:
        """Return whether another model read the very same tokens."""
        return (list(self.ids), list(self.spans)) == (list(other.ids), list(other.spans))

    def by_token(self) -> NDArray[np.float64]:
        """Return the attributions to the tokens of the text."""
        return self.values[[span is not None for span in self.spans]]

    def by_word(self, example: Mapping[str, Any]) -> dict[tuple[int, int], float]:
        """Return (text, number of the word) -> sum of the attributions to its tokens.

        Words are what white space separates. A token belongs to the first word that ends behind the token's start;
        one of white space alone after the last word belongs to none.
        """
        words = [list(re.finditer(r"\S+", example[name])) for name in _texts(example)]
        found: dict[tuple[int, int], float] = defaultdict(float)
        for span, value in zip(self.spans, self.values.tolist(), strict=True):
            if span is None:
                continue
            text, start, _ = span
            word = next((number for number, word in enumerate(words[text]) if word.end() > start), None)
            if word is not None:
                found[text, word] += value
        return dict(found)


def aligned(candidate: Attributed, reference: Attributed, example: Mapping[str, Any], words: bool) -> Pair:
    """Return the attributions of two models to the same tokens, or to the words that both have read.

    Args:
        candidate: Of one model.
        reference: Of the other.
        example: The texts.
        words: Whether words are compared; else both must have read the same tokens.
    """
    if not words:
        return candidate.by_token(), reference.by_token()
    ours, theirs = candidate.by_word(example), reference.by_word(example)
    both = sorted(ours.keys() & theirs.keys())  # one of the two may have truncated the text sooner
    return np.array([ours[key] for key in both]), np.array([theirs[key] for key in both])


def _texts(example: Mapping[str, Any]) -> tuple[str, ...]:
    return TEXTS if TEXTS[0] in example else TEXT
