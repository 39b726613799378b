"""A model in a few lines of numpy, for tests of everything that measures."""

from __future__ import annotations

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from eval.encoding import Array, EncoderSettings, Inputs, TextEncoder

WORDS = ["[PAD]", "[UNK]", "good", "bad", "fine", "poor", "film", "a", "very", "not"]


def encoder(kind: str = "classification", labels: tuple[str, ...] = ("bad", "good"), pair: bool = False) -> TextEncoder:
    tokenizer = Tokenizer(WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    return TextEncoder(tokenizer, EncoderSettings(kind=kind, labels=labels, pair=pair, max_length=32))


class BagOfWords:
    """Adds up one weight a word and class; for tagging and qa it answers word by word."""

    def __init__(self, name: str, weights: Array, encoder: TextEncoder) -> None:
        self.name = name
        self.weights = np.asarray(weights, dtype=np.float32)
        self.encoder = encoder

    def forward(self, inputs: Inputs) -> Array:
        rows = self.weights[inputs["input_ids"]] * inputs["attention_mask"][..., None]
        tokenwise = self.encoder.settings.kind in ("tagging", "qa")
        return np.asarray(rows if tokenwise else rows.sum(axis=1), dtype=np.float32)


def sentiment(name: str = "teacher", **weights: float) -> BagOfWords:
    """Return a classifier of good and bad; ``weights`` replace how good a word is."""
    goodness = {"good": 2.0, "fine": 1.0, "bad": -2.0, "poor": -1.0} | weights
    table = [[-goodness.get(word, 0.0), goodness.get(word, 0.0)] for word in WORDS]
    return BagOfWords(name, np.array(table), encoder())
