"""Which tokens a masked-language objective hides, and what stands in their places.

A *unit* is a list of places that are hidden together: a token, a word with all of its pieces (whole-word masking), a
span of words (SpanBERT, ALBERT), or a phrase or named entity (ERNIE). Objectives differ in their units and in nothing
else.

Sources: Devlin et al. 2019 (1810.04805), Cui et al. 2019 (1906.08101), Joshi et al. 2020 (1907.10529), Lan et al. 2020
(1909.11942), Sun et al. 2019 (1904.09223).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eval.encoding import IGNORED
from teachers.pretraining.objectives.free_words import FreeWords

Array = NDArray[Any]
Units = list[list[int]]
LISTS = 32
"""Lists of lengths that are drawn to fill the end of a budget."""


@dataclass(frozen=True)
class Replacement:
    """What stands in the place of a hidden token.

    Attributes:
        mask: Share that becomes the mask token.
        random: Share that becomes a random token; the rest stays as it is.
        by_unit: Whether the tokens of a unit share one draw, as in SpanBERT, or each takes its own.
    """

    mask: float = 0.8
    random: float = 0.1
    by_unit: bool = False


def check_shares(mask: float, random: float) -> None:
    """Refuse shares of hidden tokens that are more than all of them.

    Raises:
        ValueError: If they are.
    """
    if mask + random > 1:
        raise ValueError(f"mask {mask:g} and random {random:g} are shares of one whole; at most 1 together")


def tokens(words: Sequence[int]) -> Units:
    """Return every token of a word as a unit of its own.

    Args:
        words: Number of the word that each token belongs to; -1 for special tokens and padding, which are never hidden.
    """
    return [[place] for place, word in enumerate(words) if word >= 0]


def whole_words(words: Sequence[int]) -> Units:
    """Return the tokens of each word as one unit."""
    units: Units = []
    before = -1
    for place, word in enumerate(words):
        if word >= 0 and word == before:
            units[-1].append(place)
        elif word >= 0:
            units.append([place])
        before = word
    return units


def phrases(words: Sequence[int], spans: Iterable[tuple[int, int]]) -> Units:
    """Return the tokens of each phrase as one unit, and all other words as units of their own.

    Args:
        words: As for ``tokens``.
        spans: First word of each phrase and the word after its last; of two that overlap the longer counts.
    """
    owner: dict[int, int] = {}
    for number, (start, end) in enumerate(sorted(spans, key=lambda span: (span[0] - span[1], span[0]))):
        if not any(word in owner for word in range(start, end)):
            owner |= dict.fromkeys(range(start, end), number)
    units: Units = []
    keys: list[tuple[str, int]] = []
    for unit in whole_words(words):
        word = words[unit[0]]
        key = ("phrase", owner[word]) if word in owner else ("word", word)
        if keys and keys[-1] == key and key[0] == "phrase":
            units[-1] += unit
        else:
            units.append(list(unit))
            keys.append(key)
    return units


def budget_of(units: Units, rate: float) -> int:
    """Return how many tokens may be hidden: ``rate`` of those that can be, at least one."""
    able = sum(len(unit) for unit in units)
    return max(1, math.ceil(rate * able)) if able else 0


def choose(units: Units, budget: int, chance: np.random.Generator) -> Units:
    """Choose units at random until the budget is spent; one that would pass it is skipped."""
    chosen: Units = []
    for number in chance.permutation(len(units)):
        if budget < 1:
            break
        if len(units[number]) <= budget:
            chosen.append(units[number])
            budget -= len(units[number])
    return chosen


def span_lengths(p: float = 0.2, longest: int = 10) -> Array:
    """Return the probabilities of spans of 1 to ``longest`` words: geometric, cut off and normalised anew (SpanBERT).

    Args:
        p: Parameter of the geometric distribution, 0.2 in the paper (0.3 by default in its code).
        longest: Most words of a span.
    """
    lengths = p * (1 - p) ** np.arange(longest)
    return np.asarray(lengths / lengths.sum())


def ngram_lengths(longest: int = 3) -> Array:
    """Return the probabilities of n-grams of 1 to ``longest`` words: in proportion to 1/n (ALBERT)."""
    lengths = 1 / np.arange(1, longest + 1)
    return np.asarray(lengths / lengths.sum())


def choose_spans(words: Units, budget: int, chance: np.random.Generator, shares: Array | None = None) -> Units:
    """Choose spans of whole words until the budget is spent; each span is a unit.

    Each length is drawn by itself and then gets a place where it fits, so that no length is lost to the end of the text
    or to other spans. Two spans never touch: the tokens before and after a span are visible, and no run of hidden words
    is longer than the longest span. (SpanBERT's code merges spans that touch.) Where the budget left is less than the
    longest span, it is divided into as many spans as keep the mean length: cutting the last one, as both papers' codes
    do, makes spans of 512 tokens a little shorter, and those of 64 tokens by a fifth. Less than a word may be left.

    Args:
        words: The tokens of each word, in order.
        budget: Most tokens.
        chance: The source of chance.
        shares: Probabilities of spans of 1, 2, 3 ... words; SpanBERT's by default.
    """
    shares = span_lengths() if shares is None else shares
    lengths = iter((chance.choice(len(shares), max(budget, 0), p=shares) + 1).tolist())
    free, chosen = FreeWords(words), Units()
    while words and budget > 0 and (not chosen or budget >= free.mean_size):
        room = budget / free.mean_size
        for length in [next(lengths)] if room >= len(shares) else last_lengths(room, shares, chance):
            span = free.take(length, budget, chance)
            if not span:
                return chosen
            chosen.append(span)
            budget -= len(span)
    return chosen


def last_lengths(room: float, shares: Array, chance: np.random.Generator) -> list[int]:
    """Draw the lengths of the last spans, which together have ``room`` words or nearly so.

    There are ``room / mean length`` of them on average, at least one: the best of some lists of drawn lengths.

    Args:
        room: Words that are left, fewer than those of the longest span.
        shares: Probabilities of spans of 1, 2, 3 ... words.
        chance: The source of chance.
    """
    lengths = np.arange(1, len(shares) + 1)
    count = max(1, int(room / (shares @ lengths) + chance.random()))
    lists = chance.choice(lengths, (LISTS, count), p=shares)
    found: list[int] = lists[np.abs(lists.sum(axis=1) - room).argmin()].tolist()
    return found


def hide(
    ids: Array,
    chosen: Units,
    mask_id: int,
    draw: Callable[[int], Array],
    chance: np.random.Generator,
    replacement: Replacement | None = None,
) -> tuple[Array, Array]:
    """Put something else in the places of the chosen units.

    Args:
        ids: Token ids ``[L]``; they are left as they are.
        chosen: The units.
        mask_id: Id of the mask token.
        draw: Gives so many random ids, special tokens not among them.
        chance: The source of chance.
        replacement: How often what; BERT's 80, 10 and 10 percent by default.

    Returns:
        The changed ids, and the labels: the ids before where something was hidden, ``IGNORED`` elsewhere; both ``[L]``.
    """
    how = replacement or Replacement()
    changed, labels = ids.copy(), np.full_like(ids, IGNORED)
    for unit in chosen:
        labels[unit] = ids[unit]
        drawn = np.repeat(chance.random(1), len(unit)) if how.by_unit else chance.random(len(unit))
        mask, random = drawn < how.mask, (drawn >= how.mask) & (drawn < how.mask + how.random)
        places = np.array(unit)
        changed[places[mask]] = mask_id
        changed[places[random]] = draw(int(random.sum()))
    return changed, labels
