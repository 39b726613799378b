"""What of an example is read, as one text, by which equal inputs are found."""

from __future__ import annotations

import json

from eval.examples import TEXTS, Example
from eval.kinds.kind_registry import kind_of


def inputs_of(kind: str, example: Example) -> str:
    """Return what of an example is read, as one text; the fields of its truth, ids and groups are no inputs.

    Of a query with its documents it is the query, which is what a training row of that query has as well.

    Args:
        kind: Kind of task.
        example: The example.
    """
    asked = kind_of(kind)
    if asked.searches and (query := example.get(TEXTS[0], example.get("text") if "corpus" in example else None)):
        return json.dumps({"query": query})
    left_out = {*asked.gold, "id", "group"}
    return json.dumps({name: value for name, value in example.items() if name not in left_out}, sort_keys=True)
