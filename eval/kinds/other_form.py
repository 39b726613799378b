"""Whether a model reads what a task has: pairs of texts, or single ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eval.kinds.kind_registry import kind_of

if TYPE_CHECKING:
    from eval.task import TaskSpec


def other_form(name: str, spec: TaskSpec, pair: bool) -> list[str]:
    """Return why a model does not read what a task has: pairs of texts, or single ones; nothing if it does.

    Args:
        name: What the sentence calls the model.
        spec: The task.
        pair: Whether the model reads pairs.
    """
    if pair == spec.pair or not kind_of(spec.kind).pairs:
        return []
    wants = {True: "pairs of texts", False: "single texts"}
    return [f"{name}: takes {wants[pair]}, the task has {wants[spec.pair]}"]
