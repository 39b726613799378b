"""Two segments and what they are to each other: the sentence-level objectives, by how their examples are made.

Each takes a corpus of documents, which are lists of sentences, and gives segments with a label; the loss is the
cross-entropy of a head on [CLS] with ``classes`` outputs. With equal logits it is the logarithm of their number.

Sources: Devlin et al. 2019 (1810.04805), Lan et al. 2020 (1909.11942), Wang et al. 2019 (1908.04577), Sun et al. 2020
(1907.12412).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise, permutations
from math import factorial
from typing import Protocol

import numpy as np

Segment = Sequence[int]
"""The tokens of a segment, each with a number of its own: its place in the corpus."""


class Sentences(Protocol):
    """Documents of sentences, each a sequence of numbers of tokens."""

    def __len__(self) -> int:
        """Return how many documents there are."""
        ...

    def sentences(self, document: int) -> Sequence[Segment]:
        """Return the sentences of a document."""
        ...


TRIES = 16
"""Places of a document that are tried for a segment; where all of them overlap with the pair, it counts as adjacent."""


@dataclass(frozen=True)
class Pair:
    """Two segments and their label."""

    first: Segment
    second: Segment
    label: int


def halves(sentences: Sequence[Segment], chance: np.random.Generator) -> tuple[Segment, Segment]:
    """Divide sentences in two segments at a random place between them; a single one in its middle."""
    if len(sentences) == 1:
        middle = len(sentences[0]) // 2
        return sentences[0][:middle], sentences[0][middle:]
    place = int(chance.integers(1, len(sentences)))
    return joined(sentences[:place]), joined(sentences[place:])


def joined(sentences: Sequence[Segment]) -> Segment:
    """Return sentences as one segment."""
    return tuple(token for sentence in sentences for token in sentence)


def next_sentence(
    corpus: Sentences, first: Segment, second: Segment, document: int, chance: np.random.Generator
) -> Pair:
    """BERT: the second segment follows (0) or is of another document (1), each half of the time."""
    if len(corpus) > 1 and chance.random() < 0.5:
        return Pair(first, elsewhere(corpus, document, len(second), chance), 1)
    return Pair(first, second, 0)


def sentence_order(
    corpus: Sentences, first: Segment, second: Segment, document: int, chance: np.random.Generator
) -> Pair:
    """ALBERT: two segments in their order (0) or swapped (1), each half of the time."""
    del corpus, document
    return Pair(second, first, 1) if chance.random() < 0.5 else Pair(first, second, 0)


def sentence_structure(
    corpus: Sentences, first: Segment, second: Segment, document: int, chance: np.random.Generator
) -> Pair:
    """StructBERT: the second segment follows (0), precedes (1), or is of another document (2), each a third."""
    kind = int(chance.integers(3)) if len(corpus) > 1 else int(chance.integers(2))
    if kind == 2:
        return Pair(first, elsewhere(corpus, document, len(second), chance), 2)
    return Pair(first, second, 0) if kind == 0 else Pair(second, first, 1)


def sentence_distance(
    corpus: Sentences, first: Segment, second: Segment, document: int, chance: np.random.Generator
) -> Pair:
    """ERNIE 2.0: the second segment is adjacent (0), elsewhere in the document (1), or in another one (2)."""
    kind = int(chance.integers(3)) if len(corpus) > 1 else 0
    if kind == 2:
        return Pair(first, elsewhere(corpus, document, len(second), chance), 2)
    if kind == 1:
        found = _whole(corpus.sentences(document), len(second), chance, apart={*first, *second})
        if found:
            return Pair(first, found, 1)
    return Pair(first, second, 0)


PAIRS: dict[str, tuple[int, Callable[[Sentences, Segment, Segment, int, np.random.Generator], Pair]]] = {
    "next_sentence": (2, next_sentence),
    "sentence_order": (2, sentence_order),
    "sentence_structure": (3, sentence_structure),
    "sentence_distance": (3, sentence_distance),
}
"""Objective -> classes, and what makes its pairs."""


def adjacent(corpus: Sentences, first: Segment, second: Segment, document: int, chance: np.random.Generator) -> Pair:
    """UniLM: the second segment follows, and nothing is asked of the two."""
    del corpus, document, chance
    return Pair(first, second, 0)


SEGMENTS = {**PAIRS, "adjacent": (1, adjacent)}
"""Those, and two segments of which nothing is asked."""


def elsewhere(corpus: Sentences, document: int, room: int, chance: np.random.Generator) -> Segment:
    """Return up to ``room`` tokens of a random other document; see ``_whole``."""
    other = int(chance.integers(len(corpus) - 1))
    return _whole(corpus.sentences(other + (other >= document)), room, chance)


def _whole(
    sentences: Sequence[Segment], room: int, chance: np.random.Generator, apart: Set[int] = frozenset()
) -> Segment:
    """Return whole sentences from one of ``TRIES`` random places, those that come nearest to ``room`` tokens.

    A segment that followed ends where a sentence does; one that ended anywhere else could be told by its last token
    alone. Only where no sentence is as short as ``room`` is one cut.

    Args:
        sentences: Those of a document.
        room: Most tokens.
        chance: The source of chance.
        apart: Tokens that must not be among them; where they are at all places, the segment is empty.
    """
    starts = chance.integers(0, len(sentences), TRIES).tolist()
    whole = [_fitting(sentences, start, room) for start in starts]
    cut = [tuple(sentences[start][:room]) for start in starts]
    for segments in (whole, cut):
        able = [segment for segment in segments if segment and apart.isdisjoint(segment)]
        if able:
            return max(able, key=len)
    return ()


def _fitting(sentences: Sequence[Segment], start: int, room: int) -> Segment:
    """Return as many whole sentences as fit; none where the first is too long."""
    end = start
    while end < len(sentences) and len(sentences[end]) <= room:
        room -= len(sentences[end])
        end += 1
    return joined(sentences[start:end])


def reordering_classes(most: int) -> int:
    """Return the classes of sentence reordering: all orders of 1 to ``most`` segments, 9 for 3 and 33 for 4."""
    return sum(factorial(count) for count in range(1, most + 1))


def reordered(segments: Sequence[Segment], most: int, chance: np.random.Generator) -> tuple[list[Segment], int]:
    """ERNIE 2.0: cut a paragraph's segments into 1 to ``most`` parts, shuffle them, and say which order it is.

    Args:
        segments: Sentences of a paragraph.
        most: Most parts.
        chance: The source of chance.

    Returns:
        The parts as they are shown, and the class: orders of fewer parts come first, each in lexicographic order.
    """
    count = int(chance.integers(1, min(most, len(segments)) + 1))
    inner = np.arange(1, len(segments))
    places: Sequence[int] = np.sort(chance.choice(inner, count - 1, replace=False)).tolist() if count > 1 else []
    bounds = [0, *map(int, places), len(segments)]
    parts = [joined(segments[a:b]) for a, b in pairwise(bounds)]
    orders = list(permutations(range(count)))
    order = int(chance.integers(len(orders)))
    return [parts[place] for place in orders[order]], reordering_classes(count - 1) + order
