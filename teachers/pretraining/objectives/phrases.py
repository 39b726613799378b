"""Phrases, named entities and words of given lists, found in sequences of tokens."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eval.errors import UserError
from eval.files.rows import text_lines
from teachers.plain_backend import plain_backend
from teachers.pretraining.text.corpus import Corpus

logger = logging.getLogger("teachers.pretraining")
LOOKED_AT = 200_000
"""Tokens of a corpus in which phrases are looked for before training begins."""


class Phrases:
    """A set of token sequences, found at the beginnings of words; of those that begin at a place the longest counts.

    Args:
        phrases: The tokens of each.
    """

    def __init__(self, phrases: Sequence[tuple[int, ...]]) -> None:
        self.known = set(phrases)
        self.lengths: dict[int, list[int]] = {}
        for phrase in phrases:
            self.lengths.setdefault(phrase[0], []).append(len(phrase))
        self.lengths = {first: sorted(set(found), reverse=True) for first, found in self.lengths.items()}

    @classmethod
    def read(cls, files: Sequence[Path], tokenizer: Any, corpus: Corpus) -> Phrases:
        """Read lists with one phrase a line, and look whether the corpus holds any.

        Raises:
            UserError: If a file cannot be read, or nothing of it stands in the text.
        """
        texts: list[str] = []
        for file in files:
            if not file.is_file():
                raise UserError(f"{file}: no such file; a list holds one phrase a line")
            texts += [line.strip() for _, line in text_lines(file) if line is not None and line.strip()]
        if not texts:
            raise UserError(f"{', '.join(map(str, files))}: holds no phrase; write one a line")
        spaced = [form for text in texts for form in (text, f" {text}")]
        encoded = plain_backend(tokenizer).encode_batch(spaced, add_special_tokens=False)
        phrases = cls([tuple(one.ids) for one in encoded if one.ids])
        count = int(min(LOOKED_AT, len(corpus.tokens)))
        found = phrases.found(np.asarray(corpus.tokens[:count]), corpus.words(0, count))
        logger.info("%d of %d phrases' places in the first %d tokens", len(found), len(texts), count)
        if not found:
            raise UserError(
                f"{', '.join(map(str, files))}: none of its {len(texts):,} phrases stands in the first {count:,} "
                "tokens of the text; is it of the same language, and written as in the text?"
            )
        return phrases

    def found(self, ids: NDArray[Any], words: Sequence[int]) -> list[tuple[int, int]]:
        """Return the phrases of a sequence: first word of each and the word after its last; they do not overlap.

        Args:
            ids: Token ids ``[L]``.
            words: Number of the word of each token, -1 for those that are left out.
        """
        tokens, spans = ids.tolist(), []
        place = 0
        while place < len(tokens):
            end = self._end(tokens, words, place)
            if end:
                spans.append((words[place], words[end - 1] + 1))
            place = max(end, place + 1)
        return spans

    def _end(self, tokens: list[int], words: Sequence[int], place: int) -> int:
        """Return the place after the longest phrase that begins here; 0 if none does."""
        if words[place] < 0 or (place and words[place - 1] == words[place]):
            return 0
        for length in self.lengths.get(tokens[place], ()):
            end = place + length
            if end > len(tokens):
                continue
            whole = end == len(tokens) or words[end] != words[end - 1]
            if whole and min(words[place:end]) >= 0 and tuple(tokens[place:end]) in self.known:
                return end
        return 0
