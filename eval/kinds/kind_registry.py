"""The kinds of tasks by name: our own, and those that other packages offer as entry points.

A package offers one in its ``pyproject.toml``::

    [project.entry-points."compress.kinds"]
    grading = "their_package.grading:Grading"

where ``Grading`` is a subclass of ``eval.kinds.kind.Kind`` with ``name = "grading"``. Its file may import numpy, the
standard library, and of this toolkit ``eval``; exports carry a copy of it.
"""

from __future__ import annotations

import logging
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from eval.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from eval.kinds.kind import Kind

logger = logging.getLogger(__name__)

GROUP = "compress.kinds"
OWN: dict[str, str] = {
    "classification": "eval.kinds.classification:Classification",
    "regression": "eval.kinds.regression:Regression",
    "tagging": "eval.kinds.tagging:Tagging",
    "qa": "eval.kinds.qa:QuestionAnswering",
    "masked-lm": "eval.kinds.masked_lm:MaskedLanguage",
    "embedding": "eval.kinds.embedding:Embedding",
    "multiple-choice": "eval.kinds.multiple_choice:MultipleChoice",
}
"""Our own kinds, each loaded on use."""


@cache
def _offered() -> dict[str, EntryPoint]:
    """Return what other packages offer; a name that is taken is left out with a warning."""
    from importlib.metadata import entry_points

    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=GROUP):
        if entry.name in OWN or entry.name in found:
            owner = "this toolkit" if entry.name in OWN else _package(found[entry.name])
            logger.warning("kind %s of %s is left out: %s has one of that name", entry.name, _package(entry), owner)
        else:
            found[entry.name] = entry
    return found


def kind_names() -> tuple[str, ...]:
    """Return the names of all kinds, our own first; nothing is loaded."""
    return (*OWN, *_offered())


@cache
def kind_of(name: str) -> Kind:
    """Return the kind of a name, loaded on its first use.

    Raises:
        UserError: There is none, or the package that offers it is broken.
    """
    if name in OWN:
        module, _, attribute = OWN[name].partition(":")
        return _made(getattr(import_module(module), attribute))
    entry = _offered().get(name)
    if entry is None:
        raise UserError(f"kind: there is no kind {name!r}{did_you_mean(name, kind_names())}")
    try:
        found = _made(entry.load())
    except Exception as error:  # another package may raise anything
        raise UserError(
            f"kind: {name!r} comes from {_package(entry)} ({entry.value}), which cannot be loaded "
            f"({type(error).__name__}: {error}); mend that package, or uninstall it"
        ) from error
    if found.name != name:
        raise UserError(
            f"kind: {name!r} comes from {_package(entry)} ({entry.value}), which calls it {found.name!r}; both names "
            "must be the same"
        )
    return found


def own_kinds() -> list[Kind]:
    """Return our own kinds."""
    return [kind_of(name) for name in OWN]


def all_kinds() -> list[Kind]:
    """Return every kind; one of another package that is broken is left out with a warning."""
    found = []
    for name in kind_names():
        try:
            found.append(kind_of(name))
        except UserError as error:
            logger.warning("%s", error)
    return found


def _made(offered: Any) -> Kind:
    from eval.kinds.kind import Kind

    found = offered() if isinstance(offered, type) else offered
    if not isinstance(found, Kind):
        raise TypeError(f"{offered!r} is no eval.kinds.kind.Kind")
    return found


def _package(entry: EntryPoint) -> str:
    return f"the package {entry.dist.name}" if entry.dist is not None else "another package"
