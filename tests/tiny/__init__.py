"""The tiny encoders and tasks of ``compress.testing.tiny``, under the name by which our tests import them."""

import pytest

from compress.testing.tiny import (
    BAD,
    CHARACTERS,
    FAMILIES,
    FFN,
    GOOD,
    HEADS,
    HIDDEN,
    LAYERS,
    PEOPLE,
    PLACES,
    POSITIONS,
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
    "FAMILIES",
    "FFN",
    "GOOD",
    "HEADS",
    "HIDDEN",
    "LAYERS",
    "PEOPLE",
    "PLACES",
    "POSITIONS",
    "THINGS",
    "at_first",
    "tiny_config",
    "tiny_spec",
    "tiny_task",
    "tiny_taskmodel",
    "tiny_tokenizer",
]


def at_first(families, *quick):
    """Return families as parameters, slow but for those that the default tests run."""
    return [pytest.param(family, marks=() if family in quick else pytest.mark.slow) for family in families]
