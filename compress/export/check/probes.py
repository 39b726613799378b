"""Texts that the gate adds to the real examples: odd ones that break careless code, and random ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from eval.encoding import EncoderSettings, TextEncoder
from eval.kinds.kind_registry import kind_of

ODD = (
    "",
    " ",
    "\t\r\n",
    "a",
    "\N{FAMILY}\N{ZERO WIDTH JOINER}\N{GIRL} \N{REGIONAL INDICATOR SYMBOL LETTER E}\N{GRINNING FACE}!",
    "مرحبا بالعالم שלום עולם",
    "你好世界。深度学习",
    "e\N{COMBINING ACUTE ACCENT}\N{COMBINING DIAERESIS} \N{FULLWIDTH LATIN CAPITAL LETTER A}\N{FULLWIDTH DIGIT ONE}",
    "\x00\x07\x1b[31m \N{ZERO WIDTH SPACE}\N{ZERO WIDTH NO-BREAK SPACE}\N{RIGHT-TO-LEFT OVERRIDE}x",
    "[CLS] [SEP] [PAD] <s> </s> <pad> [MASK] <mask>",
    "Pneumonoultramicroscopicsilicovolcanoconiosis-" * 8,
)
"""Texts that break careless code, whatever the model; one as long as the model takes is added."""


def odd_examples(encoder: TextEncoder) -> list[dict[str, Any]]:
    """Return examples that break careless code, the last as long as the model takes."""
    texts = [*ODD, "word " * encoder.settings.max_length]
    return [_example(text, encoder.settings) for text in texts]


def synthetic_examples(encoder: TextEncoder, count: int = 32) -> list[dict[str, Any]]:
    """Return examples of random tokens of the vocabulary; always the same ones."""
    chance = np.random.default_rng(0)
    size = encoder.tokenizer.get_vocab_size()
    drawn = [chance.integers(0, size, chance.integers(2, encoder.settings.max_length)).tolist() for _ in range(count)]
    return [_example(encoder.tokenizer.decode(ids) or "a", encoder.settings) for ids in drawn]


def _example(text: str, settings: EncoderSettings) -> dict[str, Any]:
    return kind_of(settings.kind).probe(text, settings.pair)
