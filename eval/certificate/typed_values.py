"""Plain JSON values read as dataclasses with the standard library alone: whatever is of another type is refused."""

from __future__ import annotations

import dataclasses
import math
import types
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

Data = TypeVar("Data")
LARGEST = 2**63 - 1
"""The largest whole number that is taken."""


class WrongTypeError(ValueError):
    """A value that is not what its field asks for; the message names the field."""


def read(values: Any, data: type[Data], where: str = "") -> Data:
    """Return plain values as a dataclass.

    Args:
        values: What JSON gave.
        data: A dataclass whose fields are str, int, float, bool, None, Any, other dataclasses, and dictionaries,
            tuples and unions of these.
        where: What messages call the values.

    Raises:
        WrongTypeError: A field is missing, unknown, or of another type.
    """
    if not isinstance(values, dict):
        raise WrongTypeError(f"{where or 'the whole'}: must be an object")
    hints, fields = _of(data)  # type: ignore[arg-type]  # a class is hashable
    if unknown := sorted(str(name)[:60] for name in values.keys() - fields.keys()):
        raise WrongTypeError(f"{_below(where, unknown[0])}: there is no such field")
    for name, field in fields.items():
        default = (field.default, field.default_factory) != (dataclasses.MISSING, dataclasses.MISSING)
        if name not in values and not default:
            raise WrongTypeError(f"{_below(where, name)}: is missing")
    return data(**{name: _value(value, hints[name], _below(where, name)) for name, value in values.items()})


@cache
def _of(data: Any) -> tuple[dict[str, Any], dict[str, dataclasses.Field[Any]]]:
    """Return the types and the fields of a dataclass by name; found once, for thousands of rows are of one."""
    return get_type_hints(data), {field.name: field for field in dataclasses.fields(data)}


def _value(value: Any, hint: Any, where: str) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        if value is None and type(None) in inner:
            return None
        return _value(value, next(each for each in inner if each is not type(None)), where)
    if origin is dict:
        if not isinstance(value, dict):
            raise WrongTypeError(f"{where}: must be an object")
        return {name: _value(each, inner[1], _below(where, name)) for name, each in value.items()}
    if origin is tuple:
        if not isinstance(value, list):
            raise WrongTypeError(f"{where}: must be a list")
        return tuple(_value(each, inner[0], f"{where}[{place}]") for place, each in enumerate(value))
    if dataclasses.is_dataclass(hint):
        return read(value, hint, where)  # type: ignore[arg-type]
    return _plain(value, hint, where)


def _plain(value: Any, hint: Any, where: str) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST:
        return float(value)
    if type(value) is not hint:
        raise WrongTypeError(f"{where}: must be {_NAMES[hint]}, not {type(value).__name__}")
    if hint is int and abs(value) > LARGEST:
        raise WrongTypeError(f"{where}: is too large")
    if hint is float and not math.isfinite(value):
        raise WrongTypeError(f"{where}: must be finite")
    return value


_NAMES = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


def _below(where: str, name: str) -> str:
    return f"{where}.{name[:60]}" if where else name[:60]
