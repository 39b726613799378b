"""A text as its words and what stands between them, so that words change and spacing and punctuation stay."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Han characters and kana, which are written without spaces."""
CHUNK = re.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]+")


@dataclass(frozen=True, slots=True)
class Sentence:
    """Words and the text around them.

    Attributes:
        words: As written.
        gaps: What stands before the first word, between words, and after the last: one more than words.
        tags: The truth of each word, for tagging.
    """

    words: tuple[str, ...]
    gaps: tuple[str, ...]
    tags: tuple[str, ...] | None = None

    @classmethod
    def of_text(cls, text: str) -> Sentence:
        """Split at white space; punctuation at either end of a piece is no part of the word.

        Chinese and Japanese, written without spaces, give one word a character. Other scripts without spaces (Thai)
        are not split: a run of them is one word.
        """
        words, gaps, end = [], [], 0
        for start, stop in _words(text):
            gaps.append(text[end:start])
            words.append(text[start:stop])
            end = stop
        return cls(tuple(words), (*gaps, text[end:]))

    @classmethod
    def of_tokens(cls, tokens: Sequence[str], tags: Sequence[str] | None = None) -> Sentence:
        """Take words as given, punctuation marks among them."""
        between = [" "] * (len(tokens) - 1) if tokens else []
        return cls(tuple(tokens), ("", *between, "") if tokens else ("",), None if tags is None else tuple(tags))

    @property
    def text(self) -> str:
        """The whole text."""
        return self.gaps[0] + "".join(word + gap for word, gap in zip(self.words, self.gaps[1:], strict=True))

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The first and the last character (exclusive) of each word in ``text``."""
        spans, place = [], 0
        for gap, word in zip(self.gaps, self.words, strict=False):
            start = place + len(gap)
            place = start + len(word)
            spans.append((start, place))
        return spans

    def with_words(self, words: Sequence[str]) -> Sentence:
        """Return the sentence with other words, as many as before."""
        return replace(self, words=tuple(words))

    def part(self, first: int, count: int) -> Sentence:
        """Return ``count`` neighbouring words from ``first`` on, with what stands between them and their tags."""
        stop = first + count
        tags = None if self.tags is None else self.tags[first:stop]
        return Sentence(self.words[first:stop], ("", *self.gaps[first + 1 : stop], ""), tags)


def is_word(token: str) -> bool:
    """Whether a token holds a letter or a digit; punctuation marks do not."""
    return any(character.isalnum() for character in token)


def _words(text: str) -> Iterator[tuple[int, int]]:
    for match in CHUNK.finditer(text):
        start, stop = match.span()
        while start < stop and _is_mark(text[start]):
            start += 1
        while start < stop and _is_mark(text[stop - 1]):
            stop -= 1
        if start < stop:
            yield start, stop


def _is_mark(character: str) -> bool:
    return unicodedata.category(character)[0] in "PSC"
