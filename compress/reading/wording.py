"""What a field takes, in plain words such as ``a number between 0 and 1`` or ``a list of whole numbers``."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

PLAIN = {bool: "true or false", str: "text", Path: "a path", type(None): "nothing"}
PLURAL = {"a number": "numbers", "a whole number": "whole numbers", "text": "texts", "true or false": "true or false"}
SHOWN = 60
"""Characters of a value that a message shows."""
NAMED = 5
"""Fields of a block that a message names."""


def expected_of(info: FieldInfo) -> str:
    """Return what a pydantic field takes."""
    return expected(info.annotation, info.metadata)


def expected(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """Return what a value of this type has to be.

    Args:
        annotation: A type, as written in a model.
        metadata: Bounds that go with it.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return expected(arguments[0], [*metadata, *bounds_in(arguments[1:])])
    if origin in (Union, types.UnionType):
        return _either([expected(choice, metadata) for choice in arguments if choice is not type(None)])
    if origin is Literal:
        return _choices([repr(choice) for choice in arguments])
    if annotation in (int, float):
        return ("a whole number" if annotation is int else "a number") + _bounds(metadata)
    if annotation in PLAIN:
        return PLAIN[annotation]
    return _collection(annotation, origin, arguments)


def _collection(annotation: Any, origin: Any, arguments: tuple[Any, ...]) -> str:
    kind = origin or annotation
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return (
            f"a mapping from {_plural(arguments[0])} to {_plural(arguments[1])}" if len(arguments) == 2 else "a mapping"
        )
    if isinstance(kind, type) and issubclass(kind, (tuple, list, set, frozenset, Sequence)):
        if kind is tuple and arguments and arguments[-1] is not Ellipsis:
            if len(set(arguments)) == 1:
                return f"a list of {len(arguments)} {_plural(arguments[0])}"
            return f"a list of {', '.join(map(expected, arguments))}"
        return f"a list of {_plural(arguments[0])}" if arguments else "a list"
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return _block([info.alias or name for name, info in kind.model_fields.items()])
    return "a value of another kind"


def _block(fields: Sequence[str]) -> str:
    if not fields:
        return "a block without fields"
    more = f" and {len(fields) - NAMED} more" if len(fields) > NAMED else ""
    return f"a block with the fields {', '.join(fields[:NAMED])}{more}"


def bounds_in(metadata: Sequence[Any]) -> list[Any]:
    """Return the bounds among annotations, those inside a ``Field(...)`` included."""
    return [part for item in metadata for part in (item.metadata if isinstance(item, FieldInfo) else [item])]


def shown(value: Any) -> str:
    """Return a value as a message shows it: short, on one line, in the words of YAML."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, int) and abs(value) >= 10**SHOWN:
        return "a huge number"
    text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def _bounds(metadata: Sequence[Any]) -> str:
    least: Any = None
    most: Any = None
    above: Any = None
    below: Any = None
    for item in metadata:
        least = item.ge if isinstance(item, Ge) else least
        most = item.le if isinstance(item, Le) else most
        above = item.gt if isinstance(item, Gt) else above
        below = item.lt if isinstance(item, Lt) else below
    if least is not None and most is not None:
        return f" between {_number(least)} and {_number(most)}"
    low = f"at least {_number(least)}" if least is not None else f"above {_number(above)}" if above is not None else ""
    high = f"at most {_number(most)}" if most is not None else f"below {_number(below)}" if below is not None else ""
    words = " and ".join(part for part in (low, high) if part)
    return f" {'of ' if words.startswith('at ') else ''}{words}" if words else ""


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _plural(annotation: Any) -> str:
    one = expected(annotation)
    for singular, plural in PLURAL.items():
        if one == singular or one.startswith(singular + " "):
            return plural + one[len(singular) :]
    if one.startswith("a list of "):
        return "lists of " + one.removeprefix("a list of ")
    return f"items, each {one}"


def _choices(choices: Sequence[str]) -> str:
    return choices[0] if len(choices) == 1 else f"one of {', '.join(choices)}"


def _either(choices: Sequence[str]) -> str:
    distinct = list(dict.fromkeys(choices))
    return " or ".join([", ".join(distinct[:-1]), distinct[-1]]) if len(distinct) > 1 else distinct[0]
