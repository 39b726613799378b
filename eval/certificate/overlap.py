"""Which test examples a model has met before: their inputs stand among those that trained it, or that chose."""

from __future__ import annotations

import json
from collections.abc import Sequence

from eval.examples import Example
from eval.kinds.kind_registry import kind_of


def overlap_of(kind: str, test: Sequence[Example], other: Sequence[Example]) -> tuple[int, ...]:
    """Return the numbers, from 0, of the test examples whose inputs are those of another example.

    Args:
        kind: Kind of task; the fields of its truth, ids and groups are no inputs.
        test: The examples that report.
        other: Those that trained or chose.
    """
    left_out = {*kind_of(kind).gold, "id", "group"}
    known = {_inputs(example, left_out) for example in other}
    return tuple(place for place, example in enumerate(test) if _inputs(example, left_out) in known)


def _inputs(example: Example, left_out: set[str]) -> str:
    return json.dumps({name: value for name, value in example.items() if name not in left_out}, sort_keys=True)
