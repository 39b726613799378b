"""Which test examples a model has met before: their inputs stand among those that trained it, or that chose."""

from __future__ import annotations

from collections.abc import Sequence

from eval.examples import Example
from eval.kinds.example_inputs import inputs_of


def overlap_of(kind: str, test: Sequence[Example], other: Sequence[Example]) -> tuple[int, ...]:
    """Return the numbers, from 0, of the test examples whose inputs are those of another example.

    Args:
        kind: Kind of task; the fields of its truth, ids and groups are no inputs.
        test: The examples that report.
        other: Those that trained or chose.
    """
    known = {inputs_of(kind, example) for example in other}
    return tuple(place for place, example in enumerate(test) if inputs_of(kind, example) in known)
