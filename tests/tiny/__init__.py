"""The tiny encoders and tasks of ``compress.testing.tiny``, under the name by which our tests import them."""

import pytest

from compress.testing.tiny import (
    BAD,
    CHARACTERS,
    DECODERS,
    ENCODER_DECODERS,
    FAMILIES,
    FFN,
    GOOD,
    HEADS,
    HIDDEN,
    LAYERS,
    LONG,
    PEOPLE,
    PLACES,
    POSITIONS,
    RELATIVES,
    THINGS,
    tiny_config,
    tiny_spec,
    tiny_task,
    tiny_taskmodel,
    tiny_tokenizer,
)

__all__ = [
    "BAD",
    "CHARACTERS",
    "DECODERS",
    "ENCODER_DECODERS",
    "FAMILIES",
    "FFN",
    "GOOD",
    "HEADS",
    "HIDDEN",
    "LAYERS",
    "LONG",
    "PEOPLE",
    "PLACES",
    "POSITIONS",
    "RELATIVES",
    "THINGS",
    "at_first",
    "in_turn",
    "tiny_config",
    "tiny_spec",
    "tiny_task",
    "tiny_taskmodel",
    "tiny_tokenizer",
]


def at_first(families, *quick):
    """Return families as parameters, slow but for those that the default tests run."""
    return [pytest.param(family, marks=() if family in quick else pytest.mark.slow) for family in families]


def in_turn(first, second, share, always=()):
    """Return all pairs of two lists as parameters, each in its turn one of ``share`` quick, and the others slow.

    Args:
        first: Values of the first parameter.
        second: Values of the second.
        share: As many as one list has give each of its values once.
        always: Values whose pairs are all quick.
    """
    pairs = [(i + j, (a, b)) for i, a in enumerate(first) for j, b in enumerate(second)]
    late = [pair for turn, pair in pairs if turn % share and set(always).isdisjoint(pair)]
    return [pytest.param(*pair, marks=pytest.mark.slow if pair in late else ()) for _, pair in pairs]
