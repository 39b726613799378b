"""What pydantic found wrong with a block, as sentences that a user understands."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from compress.wording import SHOWN, bounds_in, expected, shown
from compress.yaml_places import Location
from eval.errors import did_you_mean


@dataclass(frozen=True)
class Mistake:
    """One thing wrong with a block: where in the block, and what."""

    location: Location
    sentence: str


def mistakes_in(
    error: ValidationError, model: type[BaseModel], given: Mapping[str, Any], also: Iterable[str] = ()
) -> list[Mistake]:
    """Return every mistake of a block, each once.

    Args:
        error: What pydantic raised.
        model: The type of the block.
        given: The values of the block.
        also: Field names that the block takes beside those of ``model``.
    """
    found = [_mistake(detail, model, given, also) for detail in error.errors(include_url=False)]
    return list(dict.fromkeys(found))


def _mistake(detail: Any, model: type[BaseModel], given: Mapping[str, Any], also: Iterable[str]) -> Mistake:
    location: Location = detail["loc"]
    kind: str = detail["type"]
    context: dict[str, Any] = detail.get("ctx") or {}
    if kind == "extra_forbidden":
        allowed = [*field_names(_owner(model, location[:-1])), *(also if len(location) == 1 else ())]
        hint = did_you_mean(str(location[-1]), allowed) or "; it takes none"
        field = f"unknown field {shown(str(location[-1]))}{hint}"
        return Mistake(location, _under(location[:-1], field))
    if kind == "value_error":
        return Mistake(location, _under(location, str(context.get("error", detail["msg"]))))
    known, annotation, bounds = _type_at(model, location)
    if kind == "missing" and isinstance(location[-1], int):
        known, annotation, bounds = _type_at(model, location[:-1])
        return Mistake(known, _under(known, f"got {shown(detail['input'])}, must be {expected(annotation, bounds)}"))
    if kind == "missing":
        words = f"the field {shown(str(location[-1]))} is missing; it must be {expected(annotation, bounds)}"
        return Mistake(location, _under(location[:-1], words))
    value = detail["input"] if known == location else _member_at(given, known, detail["input"])
    return Mistake(known, _under(known, f"got {shown(value)}, {_demand(detail, context, annotation, bounds, value)}"))


def _demand(detail: Any, context: Mapping[str, Any], annotation: Any, bounds: list[Any], value: Any) -> str:
    if detail["type"] == "too_short":
        return (
            "must not be empty" if context["min_length"] == 1 else f"must have at least {context['min_length']} items"
        )
    if detail["type"] == "too_long":
        return f"must have at most {context['max_length']} items"
    if detail["type"] == "string_too_short":
        return "must not be empty"
    wanted = expected(annotation, bounds)
    if detail["type"] == "finite_number":
        wanted = wanted.replace("a number", "a finite number", 1)
    if wanted == "a value of another kind":
        return str(detail["msg"][:1]).lower() + str(detail["msg"][1:])
    return (
        f"must be {wanted}{'; put it in quotes' if wanted == 'text' and isinstance(value, (bool, int, float)) else ''}"
    )


def numbers_from_booleans(given: Any, read: Any, location: Location = ()) -> Iterator[Location]:
    """Find where ``true`` or ``false`` was given and silently became the number 1 or 0.

    Args:
        given: The values of a block.
        read: What was made of them.
        location: Where the values stand.
    """
    if isinstance(given, bool):
        if isinstance(read, (int, float)) and not isinstance(read, bool):
            yield location
    elif isinstance(given, Mapping):
        for key, value in given.items():
            yield from numbers_from_booleans(value, _member(read, key), (*location, key))
    elif isinstance(given, list) and isinstance(read, (list, tuple)):
        for index, (value, item) in enumerate(zip(given, read, strict=False)):
            yield from numbers_from_booleans(value, item, (*location, index))


def field_names(model: Any) -> list[str]:
    """Return the names under which a block takes its fields."""
    return [info.alias or name for name, info in model.model_fields.items()] if _is_block(model) else []


def name_of(location: Location) -> str:
    """Return a location as text, such as ``latency.batch[0]``."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{_key(key)}" for key in location).lstrip(".")


def _key(key: str) -> str:
    return key if key.isprintable() and len(key) <= SHOWN else shown(key)


def _under(location: Location, sentence: str) -> str:
    return f"{name_of(location)}: {sentence}" if location else sentence


def _is_block(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _owner(model: type[BaseModel], location: Location) -> Any:
    return _type_at(model, location)[1]


def _type_at(model: type[BaseModel], location: Location) -> tuple[Location, Any, list[Any]]:
    """Walk into a type as far as it is certain which one is meant.

    Returns:
        How far, the type there, and its bounds.
    """
    annotation: Any = model
    bounds: list[Any] = []
    for depth, key in enumerate(location):
        if _is_block(annotation):
            fields = {info.alias or name: info for name, info in annotation.model_fields.items()}
            info = fields.get(str(key)) or annotation.model_fields.get(str(key))
            other = None if info is not None else getattr(annotation, "block_of", lambda name: None)(str(key))
            if other is not None:  # given by another package
                annotation, bounds = other, []
                continue
            if info is None:
                return location[:depth], annotation, bounds
            annotation, bounds = info.annotation, list(info.metadata)
        else:
            inner = _inner(annotation, key)
            if inner is None:
                return location[:depth], annotation, bounds
            annotation, bounds = inner, []
        annotation, bounds = _bare(annotation, bounds)
    return location, annotation, bounds


def _inner(annotation: Any, key: str | int) -> Any:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if not isinstance(origin, type) or not arguments:
        return None
    if issubclass(origin, Mapping):
        return arguments[1]
    if issubclass(origin, (tuple, list)) and isinstance(key, int):
        return arguments[key] if arguments[-1] is not Ellipsis and key < len(arguments) else arguments[0]
    return None


def _bare(annotation: Any, bounds: list[Any]) -> tuple[Any, list[Any]]:
    """Drop ``Annotated`` and ``| None``."""
    while True:
        origin, arguments = get_origin(annotation), get_args(annotation)
        if origin is Annotated:
            annotation, bounds = arguments[0], [*bounds, *bounds_in(arguments[1:])]
            continue
        rest = [choice for choice in arguments if choice is not type(None)]
        if origin in (Union, types.UnionType) and len(rest) == 1:
            annotation = rest[0]
            continue
        return annotation, bounds


def _member_at(given: Any, location: Location, otherwise: Any) -> Any:
    for key in location:
        try:
            given = given[key]
        except (LookupError, TypeError):
            return otherwise
    return given


def _member(read: Any, key: str) -> Any:
    if isinstance(read, Mapping):
        return read.get(key)
    if isinstance(read, BaseModel):
        by_alias = {info.alias or name: name for name, info in type(read).model_fields.items()}
        # A field of the training block may stand beside it, as a short key of the step.
        return getattr(read, by_alias[key]) if key in by_alias else getattr(getattr(read, "training", None), key, None)
    return None
