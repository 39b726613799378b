"""Labels that a text gives for nothing: shuffled trigrams, capitals, and words that come back in the document.

Sources: Wang et al. 2019 (StructBERT, 1908.04577), Sun et al. 2020 (ERNIE 2.0, 1907.12412).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eval.encoding import IGNORED

Array = NDArray[Any]


def shuffle_trigrams(
    ids: Array, able: Sequence[int], rate: float, chance: np.random.Generator, size: int = 3
) -> tuple[Array, Array]:
    """Shuffle runs of tokens; the model has to say which token stood at each place (StructBERT's word objective).

    Args:
        ids: Token ids ``[L]``; they are left as they are.
        able: Places that may be shuffled: neither special nor hidden by another objective.
        rate: Share of these places in shuffled runs, 0.05 in the paper.
        chance: The source of chance.
        size: Tokens of a run.

    Returns:
        The changed ids, and the labels: the ids before in shuffled runs, ``IGNORED`` elsewhere; both ``[L]``.
    """
    changed, labels = ids.copy(), np.full_like(ids, IGNORED)
    free = set(able)
    wanted = int(np.ceil(rate * len(able) / size)) if len(able) >= size else 0
    for start in chance.permutation(list(able)):
        run = list(range(int(start), int(start) + size))
        if wanted < 1:
            break
        if not free.issuperset(run):
            continue
        order = chance.permutation(size)
        while (order == np.arange(size)).all():
            order = chance.permutation(size)
        labels[run] = ids[run]
        changed[run] = ids[run][order]
        free -= set(run)
        wanted -= 1
    return changed, labels


def capitals(words: Sequence[int], capital: Mapping[int, bool]) -> Array:
    """Return for the first piece of each word whether it began with a capital, ``IGNORED`` for all else; ``[L]``.

    Args:
        words: Number of the word that each token belongs to, -1 for special tokens.
        capital: By the number of the word, in the text as it was before it was lower-cased.
    """
    labels = np.full(len(words), IGNORED)
    for place, word in enumerate(words):
        if word >= 0 and (place == 0 or words[place - 1] != word):
            labels[place] = int(capital[word])
    return labels


def in_document(ids: Sequence[int], others: Sequence[int], able: Sequence[int]) -> Array:
    """Return for each token whether it stands elsewhere in its document too (1) or not (0), or ``IGNORED``; ``[L]``.

    Args:
        ids: Tokens of the segment, ``[L]``.
        others: Tokens of the document's other segments.
        able: Places that are asked for.
    """
    labels, known = np.full(len(ids), IGNORED), set(others)
    for place in able:
        labels[place] = int(ids[place] in known)
    return labels
