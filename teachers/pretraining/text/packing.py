"""Which sentences make a sequence: RoBERTa's four input formats, and GPT-2's blocks.

A sequence is a list of *pieces*, each a run of tokens of the corpus; a separator stands between them and special tokens
around them. The table of all sequences is small (numbers, no text), is made once, and does not depend on the seed;
pairs and masks are drawn when a sequence is read.

Source: Liu et al. 2019 (1907.11692), section 4.2; Radford et al. 2019.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

Format = Literal["segment_pair", "sentence_pair", "full_sentences", "doc_sentences", "blocks"]
"""``segment_pair``: as many sentences of a document as fit, to be divided in two (BERT); ``sentence_pair``: two
sentences; ``full_sentences``: sentences until the sequence is full, across documents with a separator between;
``doc_sentences``: the same, but never across documents; ``blocks``: all documents as one stream with a separator
between, in sequences of the full length, without special tokens around them (GPT-2)."""
Run = tuple[int, int]
"""First token and the token after the last, counted through the corpus."""


def sequences(
    documents: Iterator[Sequence[Run]], room: int, how: Format, separator: int = 1
) -> Iterator[tuple[int, list[Run]]]:
    """Yield the sequences of a corpus: the number of the first document, and its runs of tokens.

    Every sentence comes once and in order. One that is longer than a sequence is cut into several runs.

    Args:
        documents: The sentences of each document.
        room: Tokens of a sequence, special tokens apart.
        how: The format.
        separator: Tokens that stand between two documents of a sequence.
    """
    if how == "blocks":
        yield from _blocks(documents, room, separator)
        return
    held: list[Run] = []
    used = first = 0
    for number, sentences in enumerate(documents):
        crosses = bool(held)
        for start, end in _fitting(sentences, room):
            gap = separator if crosses else 0
            full = used + gap + end - start > room or (how == "sentence_pair" and len(held) == 2)
            if held and full:
                yield first, held
                held, used, gap = [], 0, 0
            if not held:
                first = number
            if held and not gap and held[-1][1] == start and how not in ("sentence_pair", "segment_pair"):
                held[-1] = (held[-1][0], end)
            else:
                held.append((start, end))
            used += gap + end - start
            crosses = False
        if held and how != "full_sentences":
            yield first, held
            held, used = [], 0
    if held:
        yield first, held


def _blocks(documents: Iterator[Sequence[Run]], room: int, separator: int) -> Iterator[tuple[int, list[Run]]]:
    """Yield sequences that end where they are full; an empty run stands beside a separator at an end of one."""
    held: list[Run] = []
    used = first = 0
    begun = False
    for number, sentences in enumerate(documents):
        between = separator if begun and sentences else 0
        for start, end in sentences:
            place = start
            if between and used + between > room:
                yield first, held
                held, used = [], 0
            if between:
                if not held:
                    first, held = number, [(start, start)]
                held.append((start, start))
                used, between = used + separator, 0
            while place < end:
                if used == room:
                    yield first, held
                    held, used = [], 0
                if not held:
                    first = number
                taken = min(room - used, end - place)
                if held and held[-1][1] == place:
                    held[-1] = (held[-1][0], place + taken)
                else:
                    held.append((place, place + taken))
                place, used, begun = place + taken, used + taken, True
    if held:
        yield first, held


def _fitting(sentences: Sequence[Run], room: int) -> Iterator[Run]:
    for start, end in sentences:
        for place in range(start, end, room):
            yield place, min(place + room, end)
