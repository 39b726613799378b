"""Examples that read the same: they count as one group, for a text that stands there twice says nothing new."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Mapping

from eval.kinds.example_inputs import inputs_of
from eval.kinds.kind_registry import kind_of
from eval.task import Examples

logger = logging.getLogger(__name__)

LEAST_SHARE, LEAST = 0.05, 10
"""Share of a split, and examples of it, from which on repeated ones are groups; below it an interval hardly differs."""


def with_groups_of_copies(kind: str, splits: Mapping[str, Examples], name: str) -> dict[str, Examples]:
    """Return the splits, in which copies of an input are one group wherever many examples are such and none has one.

    Intervals draw whole groups, and what is carved from a split keeps them on one side.

    Args:
        kind: Kind of task; one without labels, or that searches, stays as it is.
        splits: The examples by split.
        name: What the log calls the data.
    """
    asked = kind_of(kind)
    if asked.searches or asked.truth is None:
        return dict(splits)
    return {split: _grouped(kind, examples, f"{name}: {split}") for split, examples in splits.items()}


def _grouped(kind: str, examples: Examples, name: str) -> Examples:
    if examples.groups is not None:
        return examples
    read = [inputs_of(kind, example) for example in examples]
    counts = Counter(read)
    copies = sum(counts[one] > 1 for one in read)
    if copies < max(LEAST, LEAST_SHARE * len(read)):
        return examples
    logger.warning(
        "%s: %d of %d examples repeat what another reads; copies are one group, which counts once in an interval",
        name,
        copies,
        len(read),
    )
    items = [
        {**example, "group": f"copies {hashlib.sha256(one.encode()).hexdigest()[:16]}"} if counts[one] > 1 else example
        for one, example in zip(read, examples, strict=True)
    ]
    return Examples(items, examples.name, examples.skipped)
