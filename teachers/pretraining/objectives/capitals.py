"""ERNIE 2.0's capitals: words are asked whether they began with one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from eval.encoding import IGNORED
from teachers.pretraining.objectives.pretext_objective import Ask, PretextObjective, Text
from teachers.pretraining.text.corpus import CAPITAL, Array
from teachers.pretraining.text.sequence import Drawn

if TYPE_CHECKING:
    from teachers.pretraining.prediction_heads import Head


class Capitals(PretextObjective):
    """Ask of each word whether it begins with a capital; for tokenizers that write everything small.

    Source: Sun et al. 2020 (ERNIE 2.0, 1907.12412).
    """

    def ask(self, text: Text) -> Ask:
        """Ask at the first token of every word."""
        corpus = text.corpus

        def ask(drawn: Drawn, chance: np.random.Generator) -> None:
            del chance
            flags = (corpus.flags[np.maximum(drawn.places, 0)] & CAPITAL) > 0
            first = np.flatnonzero(np.diff(drawn.words, prepend=-2) != 0)
            capital = {int(drawn.words[place]): bool(flags[place]) for place in first}
            drawn.targets["capitals"] = capitals(drawn.words.tolist(), capital)

        return ask

    def head(self, network: Any) -> Head:
        """Return a classifier of two classes over tokens."""
        from teachers.pretraining.prediction_heads import TokenHead

        return TokenHead(network, "capitals", 2)


def capitals(words: Sequence[int], capital: Mapping[int, bool]) -> Array:
    """Return for the first token of each word whether it began with a capital, ``IGNORED`` for all else; ``[L]``.

    Args:
        words: Number of the word that each token belongs to, -1 for special tokens.
        capital: By the number of the word, in the text as it was before it was lower-cased.
    """
    labels = np.full(len(words), IGNORED)
    for place, word in enumerate(words):
        if word >= 0 and (place == 0 or words[place - 1] != word):
            labels[place] = int(capital[word])
    return labels
