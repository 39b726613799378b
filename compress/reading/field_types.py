"""The types of a block's fields: which field is a block, what stands at a place of a type, and within which bounds."""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from compress.reading.wording import bounds_in
from compress.reading.yaml_places import Location
from teachers.training.config import WithTraining


def field_names(model: Any) -> list[str]:
    """Return the names under which a block takes its fields."""
    return [info.alias or name for name, info in model.model_fields.items()] if is_block(model) else []


def is_block(annotation: Any) -> bool:
    """Whether a type is a block with fields."""
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def bare(annotation: Any, bounds: Iterable[Any] = ()) -> tuple[Any, list[Any]]:
    """Return a type without ``Annotated`` and ``| None``, and the bounds that stood there."""
    bounds = list(bounds)
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


def fields_beside(owner: Any) -> tuple[str, ...]:
    """Return the fields of training that a block takes beside its own."""
    return owner.beside() if is_block(owner) and issubclass(owner, WithTraining) else ()


def type_at(model: Any, location: Location) -> tuple[Location, Any, list[Any]]:
    """Walk into a type as far as it is certain which one is meant.

    Returns:
        How far, the type there, and its bounds.
    """
    annotation: Any = model
    bounds: list[Any] = []
    for depth, key in enumerate(location):
        if is_block(annotation):
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
        annotation, bounds = bare(annotation, bounds)
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
