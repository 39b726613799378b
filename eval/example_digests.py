"""What tells examples apart: digests of their content, equal wherever they were read from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from eval.examples import Example


def _line(example: Example) -> bytes:
    return json.dumps(dict(example), sort_keys=True, ensure_ascii=False).encode()


def example_digest(example: Example) -> str:
    """Return the SHA-256 of one example."""
    return hashlib.sha256(_line(example)).hexdigest()


def examples_digest(examples: Iterable[Example]) -> str:
    """Return the SHA-256 over examples, in order."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(_line(example) + b"\n")
    return digest.hexdigest()
