"""The role of a score: final, or of a selection, since something of the model was chosen on the very same examples."""

from __future__ import annotations

from typing import Any, Literal

Role = Literal["final", "selection"]
APART = ("train", "select")
"""Splits that train or choose: no score on them is final, whatever was drawn from them, and whatever a model says."""


def role_of(digest: str, model: Any, reference: Any = None, split: str = "") -> tuple[Role, dict[str, str]]:
    """Return the role of a model's score, and what was chosen on these very examples.

    A model says what it was chosen on as ``chosen_on``: what was chosen -> ``Examples.digest`` of the examples that
    chose it, those that trained it included. One that says nothing is believed.

    Args:
        digest: ``Examples.digest`` of the examples that are answered.
        model: A predictor, or its result.
        reference: What it is compared with, likewise.
        split: Name of the split that they are.

    Returns:
        The role, and what was chosen -> the digest.

    Examples:
        >>> class Model:
        ...     name, chosen_on = "small", {"best epoch": "3f", "export gate": "a0"}
        >>> role_of("a0", Model())
        ('selection', {'export gate': 'a0'})
        >>> role_of("77", Model())
        ('final', {})
    """
    found = {what: used for what, used in _said(model).items() if used == digest}
    if reference is not None:
        found |= {f"{what}, {reference.name}": used for what, used in _said(reference).items() if used == digest}
    if split in APART:
        found |= {f"the split {split}": digest}
    return ("selection" if found else "final"), found


def _said(model: Any) -> dict[str, str]:
    return dict(getattr(model, "chosen_on", None) or {})
