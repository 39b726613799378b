"""Words that a tokenizer splits into several tokens, as tokens of their own: for vectors that know no neighbours."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer
from torch import Tensor

from teachers.plain_backend import plain_backend

LEAST = 2
"""How often a word stands in the texts, at least."""


def takes_words(tokenizer: Any) -> bool:
    """Return whether a whole word that is added is preferred to its pieces: WordPiece takes the longest match."""
    return type(tokenizer.backend_tokenizer.model).__name__ == "WordPiece"


def split_words(tokenizer: Any, texts: Iterable[str], most: int) -> list[str]:
    """Return the most frequent words of letters and digits that are split into several known tokens.

    Args:
        tokenizer: A fast tokenizer of transformers with a WordPiece model.
        texts: Any texts.
        most: How many at most; those that stand once are left out.

    Returns:
        Words as the tokenizer normalizes them, those of fewest tokens first, and of these the most frequent.
    """
    backend, counts = plain_backend(tokenizer), Counter[str]()
    for text in texts:
        plain = backend.normalizer.normalize_str(text) if backend.normalizer else text
        counts.update(word for word, _ in backend.pre_tokenizer.pre_tokenize_str(plain))
    known, unknown = tokenizer.get_vocab(), tokenizer.unk_token_id
    found: list[tuple[int, int, str]] = []
    for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if count < LEAST or len(found) == most:
            break
        pieces = backend.encode(word, add_special_tokens=False).ids if word not in known and word.isalnum() else []
        if len(pieces) > 1 and unknown not in pieces:
            found.append((len(pieces), -count, word))
    return [word for _, _, word in sorted(found)]


def with_words(tokenizer: Any, words: Iterable[str]) -> Any:
    """Return a copy of a tokenizer that has words as tokens, numbered after all others.

    Args:
        tokenizer: A fast tokenizer of transformers with a WordPiece model; it is not changed.
        words: None of them is a token of it.
    """
    state, first = json.loads(tokenizer.backend_tokenizer.to_str()), len(tokenizer)
    state["model"]["vocab"] |= {word: first + place for place, word in enumerate(words)}
    made = copy.deepcopy(tokenizer)
    made._tokenizer = Tokenizer.from_str(json.dumps(state))
    if hasattr(made, "_vocab"):  # what its class was made from
        made._vocab = state["model"]["vocab"]
    return made


def added(before: Any, after: Any) -> list[list[int]]:
    """Return, for each token that ``with_words`` added, the ids that its word has without it."""
    words = sorted((place, word) for word, place in after.get_vocab().items() if place >= len(before))
    backend = plain_backend(before)
    return [backend.encode(word, add_special_tokens=False).ids for _, word in words]


@dataclass(frozen=True)
class AddedWords:
    """The rows of a table that belong to whole words, below those of the tokens that each consists of.

    Attributes:
        first: Row of the first word.
        tokens: The tokens of each word.
    """

    first: int
    tokens: Sequence[Sequence[int]]

    def summed(self, rows: Tensor) -> Tensor:
        """Return rows ``[V, d]`` in which that of a word is the sum of those of its tokens."""
        found = rows.clone()
        for place, tokens in enumerate(self.tokens, start=self.first):
            found[place] = rows[list(tokens)].sum(dim=0)
        return found

    def as_tokens(self, counts: Tensor) -> Tensor:
        """Return counts ``[V]`` as they were if every word still stood there as its tokens."""
        found = counts.clone()
        for place, tokens in enumerate(self.tokens, start=self.first):
            found[place] = 0
            for token in tokens:
                found[token] += counts[place]
        return found
