"""Examples that trained or chose a model, recognised among others: hashes of their inputs, kept by the set's digest.

A model says the digest of each set that it learned from or was chosen on (``chosen_on``). Whether a set is the very one
that reports is told by its digest alone; whether they share examples, as where both were drawn from one file, only by
the examples. Their hashes stay on the machine that used them, under ``COMPRESS_HOME``: no model folder holds any.
"""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from eval.errors import CompressError
from eval.examples import Example
from eval.files.home import home
from eval.files.writing import atomic_write
from eval.kinds.example_inputs import inputs_of
from eval.task import Examples

logger = logging.getLogger(__name__)

FOLDER = "examples"
"""Folder below ``COMPRESS_HOME``."""


def remember(kind: str, *sets: Examples | None) -> None:
    """Keep the hashes of the inputs of sets that train or choose; a disk that refuses is told of and no error.

    Args:
        kind: Kind of task.
        sets: The examples; None and empty ones are passed over.
    """
    for examples in sets:
        if examples is None or not len(examples) or (file := _file(examples.digest)).is_file():
            continue
        held = io.BytesIO()
        np.save(held, np.unique(_hashes(kind, examples)))
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(file, held.getvalue())
        except (OSError, CompressError) as error:
            logger.warning("examples are not remembered, so later reports cannot recognise some of them: %s", error)
            return


def met(kind: str, examples: Sequence[Example], digest: str) -> tuple[int, ...]:
    """Return the numbers, from 0, of the examples whose inputs stand in the set of this digest; none if it is unknown.

    Args:
        kind: Kind of task.
        examples: Those that are to report.
        digest: ``Examples.digest`` of a set that trained or chose.
    """
    try:
        known = np.load(_file(digest), allow_pickle=False)
    except (OSError, ValueError):
        return ()
    return tuple(int(place) for place in np.flatnonzero(np.isin(_hashes(kind, examples), known)))


def _file(digest: str) -> Path:
    return home() / FOLDER / f"{digest}.npy"


def _hashes(kind: str, examples: Sequence[Example]) -> NDArray[np.uint64]:
    """Return the first eight bytes of the SHA-256 of each example's inputs."""
    digests = (hashlib.sha256(inputs_of(kind, example).encode()).digest()[:8] for example in examples)
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)
