"""The role of a score: final, or of a selection, since something of the model was chosen on the same examples."""

from __future__ import annotations

from itertools import chain
from typing import Any, Literal

from eval.proof.known_examples import met
from eval.task import Examples

Role = Literal["final", "selection"]
APART = ("train", "select")
"""Splits that train or choose: no score on them is final, whatever was drawn from them, and whatever a model says."""
SHARED = 0.05
"""Share of the examples from which on a set that trained or chose makes a score one of a selection. Official splits of
many data sets repeat a few examples; their certificate counts them."""


def role_of(
    examples: Examples, model: Any, reference: Any = None, split: str = "", kind: str | None = None
) -> tuple[Role, dict[str, str]]:
    """Return the role of a model's score, and what was chosen on these examples, or on many of them.

    A model says what it was chosen on as ``chosen_on``: what was chosen -> ``Examples.digest`` of the examples that
    chose it, those that trained it included. One that says nothing is believed. A set that shares more than ``SHARED``
    of the examples is recognised where its examples are known (``eval.proof.known_examples``).

    Args:
        examples: Those that are answered.
        model: A predictor, or its result.
        reference: What it is compared with, likewise.
        split: Name of the split that they are.
        kind: Kind of task; without it only the very same set is recognised.

    Returns:
        The role, and what was chosen -> the digest.

    Examples:
        >>> from eval.task import Examples
        >>> class Model:
        ...     name, chosen_on = "small", {"export gate": Examples([{"text": "a warm film"}]).digest}
        >>> role_of(Examples([{"text": "a warm film"}]), Model())[0]
        'selection'
        >>> role_of(Examples([{"text": "a dull film"}]), Model())
        ('final', {})
    """
    said = _said(model)
    if reference is not None:
        said |= {f"{what}, {reference.name}": used for what, used in _said(reference).items()}
    found = {what: used for what, used in said.items() if used == examples.digest}
    if kind is not None:
        shared = {what: met(kind, examples, used) for what, used in said.items() if what not in found}
        if len(set(chain.from_iterable(shared.values()))) > SHARED * len(examples):
            for what, places in shared.items():
                if places:
                    found[f"{what} on {len(places):,} of the {len(examples):,}"] = said[what]
    if split in APART:
        found |= {f"the split {split}": examples.digest}
    return ("selection" if found else "final"), found


def _said(model: Any) -> dict[str, str]:
    return dict(getattr(model, "chosen_on", None) or {})
