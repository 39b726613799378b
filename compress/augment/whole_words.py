"""Which tokens of a tokenizer are whole words."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice
from typing import Any

from compress.augment.sentence import CHUNK

SPARE = 4
"""Words to rank beyond those that are wanted, for the word itself and forms that differ in case alone drop out."""
SPACE_MARKS = ("Ġ", "▁")
"""First characters of pieces that begin a word, in byte-level and in unigram tokenizers."""


def whole_words(tokenizer: Any) -> dict[int, str]:
    """Return the alphabetic words that are one piece by themselves, by piece id.

    A piece that only goes on with a word (``##ing``) is none, nor are single Latin letters and special tokens; of a
    tokenizer that marks spaces, only the pieces that begin with one are words.

    Args:
        tokenizer: A fast tokenizer of transformers.
    """
    backend = tokenizer.backend_tokenizer
    model = json.loads(backend.to_str())["model"]
    special = set(tokenizer.all_special_ids)
    found = {}
    for piece, index in tokenizer.get_vocab().items():
        if model["type"] == "WordPiece":
            word = "" if piece.startswith(model["continuing_subword_prefix"]) else piece
        else:
            word = _text(backend, index, piece) if piece.startswith(SPACE_MARKS) else ""
        letter = len(word) == 1 and word.isascii()
        if index not in special and word.isalpha() and not letter and CHUNK.fullmatch(word):
            found[index] = word
    return dict(sorted(found.items()))


def others_than(word: str, ordered: Iterable[str], count: int) -> tuple[str, ...]:
    """Return the first ``count`` words of an order that are not ``word``, in its case and each once."""
    others = (in_case_of(other, word) for other in ordered if other.casefold() != word.casefold())
    return tuple(islice(dict.fromkeys(others), count))


def _text(backend: Any, index: int, piece: str) -> str:
    """Return what a piece that begins with a space mark stands for; not every tokenizer can decode."""
    text: str = backend.decode([index])
    return piece[1:] if text == piece else text.strip()


def in_case_of(word: str, model: str) -> str:
    """Return a lower-case word in the case of another: ``film``, ``Film`` or ``FILM``."""
    if not word.islower():
        return word
    if model.isupper() and len(model) > 1:
        return word.upper()
    return word.capitalize() if model[:1].isupper() else word
