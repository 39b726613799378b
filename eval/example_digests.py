"""What tells examples apart: digests of their content, equal wherever they were read from; and which belong together.

The field ``group`` is left out: no model reads it, so caches, teachers and results stay those of the data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Sequence

from eval.examples import Example


def _line(example: Example) -> bytes:
    read = {name: value for name, value in example.items() if name != "group"}
    return json.dumps(read, sort_keys=True, ensure_ascii=False).encode()


def example_digest(example: Example) -> str:
    """Return the SHA-256 of one example."""
    return hashlib.sha256(_line(example)).hexdigest()


def input_digest(example: Example, truths: Collection[str] = ()) -> str:
    """Return the SHA-256 of what is asked in an example: of all its fields but those that hold the truth."""
    return example_digest({name: value for name, value in example.items() if name not in truths})


def groups_of(examples: Sequence[Example]) -> list[str | None] | None:
    """Return the group of each example; None if no example has one."""
    found = [None if example.get("group") is None else str(example["group"]) for example in examples]
    return found if any(group is not None for group in found) else None


def examples_digest(examples: Iterable[Example]) -> str:
    """Return the SHA-256 over examples, in order."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(_line(example) + b"\n")
    return digest.hexdigest()
