"""Vectors of words, and the words nearest to a word: from a text file such as GloVe's, or a model's embedding table."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from compress.augment.whole_words import SPARE, others_than, whole_words
from eval.errors import UserError, quantity
from eval.files.paths import user_path
from eval.files.unpacked import open_unpacked
from teachers.anatomy.encoder import word_embeddings
from teachers.taskmodel import TaskModel

Floats = NDArray[np.float32]
READ = 100_000
"""Words of a file that are read, its most frequent ones."""
TOGETHER = 512
"""Words whose neighbours are sought in one product."""


class WordVectors:
    """Unit vectors of words.

    Args:
        words: Alphabetic words that may be neighbours.
        vectors: Their vectors ``[words, d]``, of any length.
        vector_of: Returns the vector ``[d]`` of any word, or None.
    """

    def __init__(
        self, words: Sequence[str], vectors: Floats, vector_of: Callable[[str], Floats | None] | None = None
    ) -> None:
        self.words, self.vectors = list(words), _unit(vectors)
        self.places = {word: place for place, word in enumerate(self.words)}
        self.vector_of = vector_of or self._own

    def _own(self, word: str) -> Floats | None:
        place = self.places.get(word, self.places.get(word.lower()))
        return None if place is None else self.vectors[place]

    def nearest(self, words: Iterable[str], count: int) -> dict[str, tuple[str, ...]]:
        """Return the ``count`` other words with the highest cosine, nearest first; words without a vector are left out.

        Case does not tell words apart, and neighbours get the case of their word.
        """
        vectors = {word: vector for word in dict.fromkeys(words) if (vector := self.vector_of(word)) is not None}
        found: dict[str, tuple[str, ...]] = {}
        given = list(vectors)
        most = min(count + SPARE, len(self.words))
        for first in range(0, len(given), TOGETHER):
            part = given[first : first + TOGETHER]
            cosines = _unit(np.stack([vectors[word] for word in part])) @ self.vectors.T
            rows = np.argpartition(-cosines, most - 1, axis=1)[:, :most]
            for word, row, cosine in zip(part, rows, cosines, strict=True):
                ordered = [self.words[i] for i in sorted(row, key=lambda i: (-cosine[i], i))]
                found[word] = others_than(word, ordered, count)
        return found


def vectors_of_model(model: TaskModel) -> WordVectors:
    """Return the rows of a model's embedding table that are whole words; a word of several pieces has their mean."""
    table = word_embeddings(model.model).weight.detach().float().cpu().numpy()
    words = whole_words(model.tokenizer)
    backend = model.encoder.tokenizer

    def mean_of_pieces(word: str) -> Floats | None:
        ids = backend.encode(f" {word}", add_special_tokens=False).ids
        return np.asarray(table[ids].mean(axis=0), dtype=np.float32) if ids else None

    return WordVectors(list(words.values()), table[list(words)], mean_of_pieces)


def vectors_of_file(path: str | Path) -> WordVectors:
    """Read a text file with a word and its numbers on each line, as GloVe, word2vec and fastText write it.

    The first line of the latter two is skipped, as are lines of words with blanks in them, which GloVe has.

    Raises:
        UserError: If the file cannot be read or is of another form.
    """
    path = user_path(path)
    words: list[str] = []
    rows: list[Floats] = []
    try:
        with io.TextIOWrapper(open_unpacked(path), encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                word, *numbers = line.rstrip().split(" ")
                if number == 1 and word.isdigit() and len(numbers) == 1:
                    continue
                if len(words) == READ:
                    break
                if rows and len(numbers) > len(rows[0]):
                    continue
                row = np.array(numbers, dtype=np.float32)
                if rows and len(row) != len(rows[0]):
                    raise UserError(
                        f"{path}:{number}: has {quantity(len(row), 'number')}, the lines before {len(rows[0])}"
                    )
                if word.isalpha():
                    words.append(word)
                    rows.append(row)
    except (OSError, EOFError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from error
    except ValueError as error:
        raise UserError(f"{path}: each line must hold a word and its numbers, as GloVe's files do ({error})") from error
    if not words:
        raise UserError(f"{path}: holds no words")
    return WordVectors(words, np.stack(rows))


def _unit(vectors: Floats) -> Floats:
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12), dtype=np.float32)
