"""Two subword vocabularies over the same words: their union, and texts whose words are cut by either."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from numpy.random import Generator, default_rng
from tokenizers import Tokenizer

from eval.encoding import Feature
from teachers.anatomy.encoder import max_tokens
from teachers.data.encoded_dataset import Batch, EncodedDataset, mask_rows
from teachers.plain_backend import plain_backend
from teachers.taskmodel import TaskModel

TICKS = 1 << 32
"""Progress of the training, 0 to 1, seeds draws as a whole number of these."""

Word = tuple[int | None, list[int]]
"""The number of a word in its text, None for special tokens, and the ids of its pieces."""


def union_ids(student: Any, teacher: Any, rows: int) -> np.ndarray:
    """Return the id of every student piece in the union of two vocabularies.

    The union begins with the teacher's own rows; pieces that only the student has follow, in the student's order.

    Args:
        student: Its tokenizer, of which ids have no gaps.
        teacher: Its tokenizer.
        rows: Rows of the teacher's word embeddings.

    Returns:
        int64 ``[student pieces]``.
    """
    known, own = teacher.get_vocab(), student.get_vocab()
    pieces = sorted(own, key=own.__getitem__)
    new = iter(range(rows, rows + len(pieces)))
    return np.array([known[piece] if piece in known else next(new) for piece in pieces], dtype=np.int64)


@dataclass(frozen=True)
class MixedText:
    """The student's rows as the teacher reads them: every word cut by one of the two vocabularies.

    Attributes:
        rows: The student's rows, windows of texts.
        teacher: Its network has the pieces of both; its tokenizer, the old one, finds the same words as the student's.
        union: Id of every student piece in the union, from ``union_ids``.
        probability: That of the student's vocabulary, for every word by itself.
    """

    rows: EncodedDataset
    teacher: TaskModel
    union: np.ndarray
    probability: float

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return plain_backend(self.teacher.tokenizer)

    @cached_property
    def _first(self) -> dict[int, int]:
        """Example -> its first row."""
        first: dict[int, int] = {}
        for row, feature in enumerate(self.rows.features):
            first.setdefault(feature.example, row)
        return first

    def batch(self, batch: Batch) -> Batch:
        """Return the same rows for the teacher, masked by draws of their own; the same for the same progress."""
        rows, tokenizer, encoder = batch.rows.tolist(), self.teacher.tokenizer, self.teacher.encoder
        chances = [default_rng([self.rows.seed, round(batch.progress * TICKS), row]) for row in rows]
        special, mask = np.array(sorted(tokenizer.all_special_ids)), int(tokenizer.mask_token_id)
        pieces = int(self.teacher.model.config.vocab_size)
        arrays = encoder.collate([Feature(0, ids, [0] * len(ids)) for ids in self.ids(rows, chances)])
        real = arrays["attention_mask"]
        arrays["input_ids"], labels = mask_rows(arrays["input_ids"], real, chances, special, mask, pieces)
        inputs = {name: torch.from_numpy(values) for name, values in arrays.items()}
        found = Batch(inputs, {"labels": torch.from_numpy(labels)}, batch.rows, batch.progress)
        return found.to(batch.rows.device)

    def ids(self, rows: Sequence[int], chances: Sequence[Generator]) -> list[list[int]]:
        """Return the teacher's token ids of rows, special tokens included, each with its own source of draws.

        A row longer than the teacher takes loses what is before its last token.
        """
        examples = [self.rows.features[row].example for row in rows]
        texts = [self.rows.examples[example]["text"] for example in examples]
        own = self.rows.encoder.tokenizer.encode_batch(texts)
        other = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        most, found = max_tokens(self.teacher.model.config), []
        for row, example, student, teacher, chance in zip(rows, examples, own, other, chances, strict=True):
            windows = [student, *student.overflowing]
            whole = Counter(word for window in windows for word in window.word_ids)
            ids = self._mixed(_words(windows[row - self._first[example]]), whole, dict(_words(teacher)), chance)
            found.append(ids if len(ids) <= most else [*ids[: most - 1], ids[-1]])
        return found

    def _mixed(
        self, window: list[Word], whole: Counter[int | None], teacher: dict[int | None, list[int]], chance: Generator
    ) -> list[int]:
        """Draw the vocabulary of every word; special tokens, and words that the window's edge cuts, stay as read."""
        drawn = chance.random(len(window)) < self.probability
        ids: list[int] = []
        for (word, pieces), from_student in zip(window, drawn, strict=True):
            stays = from_student or word is None or len(pieces) < whole[word]
            ids += self.union[pieces].tolist() if stays else teacher[word]
        return ids


def _words(encoding: Any) -> list[Word]:
    places = zip(encoding.word_ids, encoding.ids, strict=True)
    return [(word, [piece for _, piece in group]) for word, group in groupby(places, key=itemgetter(0))]
