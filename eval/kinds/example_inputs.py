"""What of an example is read, as one text, by which equal inputs are found."""

from __future__ import annotations

import json

from eval.examples import Example
from eval.kinds.kind_registry import kind_of


def inputs_of(kind: str, example: Example) -> str:
    """Return what of an example is read, as one text; the fields of its truth, ids and groups are no inputs.

    Args:
        kind: Kind of task.
        example: The example.
    """
    left_out = {*kind_of(kind).gold, "id", "group"}
    return json.dumps({name: value for name, value in example.items() if name not in left_out}, sort_keys=True)
