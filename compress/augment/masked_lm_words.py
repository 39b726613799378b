"""Words that a masked-language model puts in the place of a word."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from compress.augment.sentence import Sentence
from compress.augment.whole_words import SPARE, others_than, whole_words
from eval.encoding import Feature
from eval.inference import batches_by_length
from eval.progress.stages import counted
from teachers.taskmodel import TaskModel, evaluating, logits_of

logger = logging.getLogger("compress.augment")

ROWS = 64
"""Masked texts that are predicted together."""


@dataclass(frozen=True)
class Pieces:
    """A text as the model reads it.

    Attributes:
        feature: Its pieces.
        single: The place of each word that is one piece, by word.
        several: Words that are several pieces.
    """

    feature: Feature
    single: dict[int, int] = field(default_factory=dict)
    several: list[int] = field(default_factory=list)


class MaskedWords:
    """Candidates from a masked-language model: each word masked once, many texts of like length together.

    Args:
        model: A masked-language model.
        beside: Whether the text with its masked word is followed by the whole text as a second one. The model then
            sees the word that it replaces, and gives words of like meaning rather than any that fit.
    """

    def __init__(self, model: TaskModel, *, beside: bool = True) -> None:
        self.model, self.beside = model, beside
        words = whole_words(model.tokenizer)
        self.words = list(words.values())
        self.ids = torch.tensor(list(words), dtype=torch.int64)

    def pieces(self, sentence: Sentence, wanted: Sequence[int]) -> Pieces:
        """Find the pieces of the wanted words; words beyond the longest input of the model have none."""
        text = sentence.text
        encoding = self.model.encoder.tokenizer.encode(text, text if self.beside else None)
        found = Pieces(Feature(0, encoding.ids, encoding.type_ids))
        spans = sentence.spans
        places = [
            (place, *_trimmed(text, *offset))
            for place, (sequence, offset) in enumerate(zip(encoding.sequence_ids, encoding.offsets, strict=True))
            if sequence == 0
        ]
        for word in wanted:
            start, stop = spans[word]
            covering = [(place, first, last) for place, first, last in places if first < stop and last > start]
            if len(covering) == 1 and covering[0][1:] == (start, stop):
                found.single[word] = covering[0][0]
            elif len(covering) > 1:
                found.several.append(word)
        return found

    def candidates(self, sentences: Sequence[Sentence], pieces: Sequence[Pieces], count: int) -> list[dict[int, Any]]:
        """Return the ``count`` likeliest other words in the place of every one-piece word, likeliest first.

        Args:
            sentences: The texts.
            pieces: What ``pieces`` found in each.
            count: Words for each place.

        Returns:
            For each sentence, a tuple of words by word index.
        """
        jobs = [(index, word, place) for index, own in enumerate(pieces) for word, place in own.single.items()]
        logger.info("predicting other words in %d places of %d texts", len(jobs), len(sentences))
        found: list[dict[int, Any]] = [{} for _ in sentences]
        lengths = [len(pieces[index].feature.ids) for index, _, _ in jobs]
        with self.model.on_gpu():
            for rows in counted(batches_by_length(lengths, ROWS), "predicting other words", len(jobs)):
                batch = [jobs[row] for row in rows]
                features = [pieces[index].feature for index, _, _ in batch]
                best = self._best(features, [place for *_, place in batch], count)
                for (index, word, _), row in zip(batch, best, strict=True):
                    old = sentences[index].words[word]
                    found[index][word] = others_than(old, (self.words[i] for i in row), count)
        return found

    def _best(self, features: Sequence[Feature], places: Sequence[int], count: int) -> list[list[int]]:
        """Return the indices of a few more than ``count`` of the likeliest words at the masked places."""
        encoder, network = self.model.encoder, self.model.model
        inputs = encoder.collate(features)
        length = inputs["input_ids"].shape[1]
        starts = [encoder.place(len(feature.ids), length).start for feature in features]
        at = np.array(places) + np.array(starts)
        rows = np.arange(len(features))
        inputs["input_ids"][rows, at] = self.model.tokenizer.mask_token_id
        device = next(network.parameters()).device
        tensors = {name: torch.from_numpy(values).to(device) for name, values in inputs.items()}
        with evaluating(network), _only(network, rows, at):
            logits = logits_of(network(**tensors))
            if logits.ndim == 3:  # a head that the hook does not reach
                logits = logits[rows, at]
            logits = logits[:, self.ids.to(device)].float()
            return logits.topk(min(count + SPARE, len(self.words))).indices.tolist()


@contextlib.contextmanager
def _only(network: Any, rows: np.ndarray, places: np.ndarray) -> Iterator[None]:
    """Give the last layer of a masked-language head, which is as wide as the vocabulary, the masked places alone."""
    layer = network.get_output_embeddings()
    hook = layer.register_forward_pre_hook(lambda _, inputs: (inputs[0][rows, places],))
    try:
        yield
    finally:
        hook.remove()


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the range without outer white space: byte-level pieces begin with a space."""
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return start, end
