"""Whether a model reads what a task has: pairs of texts, or single ones."""

from __future__ import annotations

from eval.kinds.kind_registry import kind_of

FORMS = {True: "pairs of texts", False: "single texts"}


def other_form(name: str, kind: str, pair: bool, reads_pairs: bool) -> list[str]:
    """Return why a model does not read the texts of a task; nothing if it does.

    Args:
        name: What the sentence calls the model.
        kind: Kind of task.
        pair: Whether the task has pairs.
        reads_pairs: Whether the model reads pairs.
    """
    if pair == reads_pairs or not kind_of(kind).pairs:
        return []
    return [f"{name}: takes {FORMS[reads_pairs]}, the task has {FORMS[pair]}"]
