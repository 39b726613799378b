"""What pydantic found wrong with a block, as sentences that a user understands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from compress.reading.field_types import field_names, fields_beside, is_block, type_at
from compress.reading.wording import SHOWN, expected, shown
from compress.reading.yaml_places import Location
from eval.errors import UserError, did_you_mean
from teachers.training.config import Training, WithTraining

Read = TypeVar("Read")
SENTENCE = "sentence"
"""Type of the errors that ``validated`` raises."""


@dataclass(frozen=True)
class FieldError:
    """One thing wrong with a block.

    Attributes:
        location: Where it was written.
        field: The field that a message names; empty for the block itself.
        words: What is wrong with it.
    """

    location: Location
    field: Location
    words: str

    @property
    def sentence(self) -> str:
        """The words with the field before them."""
        return f"{name_of(self.field)}: {self.words}" if self.field else self.words


def validated(read: Callable[[Any], Read], model: type[BaseModel], given: Any, at: Location = ()) -> Read:
    """Return what a validator makes of plain values.

    Args:
        read: The validator, such as the ``model_validate`` of a block.
        model: The block that the values are for, or that holds them at ``at``.
        given: The values.
        at: Where the values stand in ``model``.

    Raises:
        ValidationError: With every error as a sentence (see ``errors_in``); a validator of a block around may let it
            through.
    """
    found: list[FieldError] = []
    block: Any = None
    try:
        block = read(given)
    except ValidationError as error:
        found = errors_in(error, model, given, at)
        if isinstance(given, Mapping):  # what is right so far may still hold a 'true' where a number belongs
            wrong = {one.location[len(at) :][:1] for one in found}
            block = _quietly(read, {key: value for key, value in given.items() if (key,) not in wrong})
    except UserError as error:
        found = [FieldError(at, at, problem) for problem in error.problems]
    for place in numbers_from_booleans(given, block, at):
        found.append(FieldError(place, place, "got true or false, must be a number"))
    if found:
        raise refusal(model.__name__, found, skip=len(at))
    result: Read = block
    return result


def refusal(title: str, found: Iterable[FieldError], at: Location = (), skip: int = 0) -> ValidationError:
    """Return an exception for a validator to raise, which tells errors in our own words.

    Args:
        title: What was read.
        found: The errors.
        at: Where it stands in what the validator is given.
        skip: Keys at the beginning of each location that lead to what the validator is given.
    """
    details: list[InitErrorDetails] = [
        {
            "type": PydanticCustomError(SENTENCE, "{sentence}", {"sentence": one.sentence, "error": one}),
            "loc": (*at, *one.location[skip:]),
            "input": None,
        }
        for one in found
    ]
    return ValidationError.from_exception_data(title, details)


def errors_in(
    error: ValidationError, model: type[BaseModel], given: Any, at: Location = (), also: Iterable[str] = ()
) -> list[FieldError]:
    """Return every error of a block, each once.

    Args:
        error: What pydantic raised.
        model: The block, or one that holds it at ``at``.
        given: The values of the block.
        at: Where they stand in ``model``.
        also: Names of fields that the block takes beside those of ``model``.
    """
    found = [_field_error(detail, model, given, at, also) for detail in error.errors(include_url=False)]
    return list(dict.fromkeys(found))


def _field_error(detail: Any, model: type[BaseModel], given: Any, at: Location, also: Iterable[str]) -> FieldError:
    location: Location = (*at, *detail["loc"])
    kind: str = detail["type"]
    context: dict[str, Any] = detail.get("ctx") or {}
    if kind == SENTENCE:
        told: FieldError = context["error"]
        return FieldError(location, (*location[: len(location) - len(told.location)], *told.field), told.words)
    owner = type_at(model, at)[1]
    place = (*at, *_as_written(detail["loc"], given, owner))
    if kind == "extra_forbidden":
        around = type_at(model, location[:-1])[1]
        allowed = [*field_names(around), *fields_beside(around), *(also if len(location) == 1 else ())]
        hint = did_you_mean(str(location[-1]), allowed) or "; it takes none"
        return FieldError(place, location[:-1], f"unknown field {shown(str(location[-1]))}{hint}")
    if kind == "value_error":
        return FieldError(place, location, str(context.get("error", detail["msg"])))
    known, annotation, bounds = type_at(model, location)
    if kind == "missing" and not isinstance(location[-1], int):
        words = f"the field {shown(str(location[-1]))} is missing; it must be {expected(annotation, bounds)}"
        return FieldError(place, location[:-1], words)
    if kind == "missing":
        known, annotation, bounds = type_at(model, location[:-1])
    if known != location:
        place = (*at, *_as_written(known[len(at) :], given, owner))
    value = _member_at(given, known[len(at) :], detail["input"]) if known != location else detail["input"]
    if kind == "missing":
        return FieldError(place, known, f"got {shown(detail['input'])}, must be {expected(annotation, bounds)}")
    return FieldError(place, known, f"got {shown(value)}, {_demand(detail, context, annotation, bounds, value)}")


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


def name_of(location: Location) -> str:
    """Return a location as text, such as ``latency.batch[0]``."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{_key(key)}" for key in location).lstrip(".")


def _key(key: str) -> str:
    return key if key.isprintable() and len(key) <= SHOWN else shown(key)


def _as_written(location: Location, given: Any, owner: Any) -> Location:
    """Return where a field was written: under its old name, or beside the ``training`` block that it belongs to.

    Args:
        location: Where the field stands in the type.
        given: What was written.
        owner: The type.
    """
    if not location or not isinstance(given, (Mapping, list)):
        return location
    (first, *rest), inner = location, type_at(owner, location[:1])[1]
    if isinstance(given, Mapping) and is_block(owner):
        if first == "training" and issubclass(owner, WithTraining):
            for name in [_name_in(given, Training, key) for key in rest[:1]]:
                if name in given and name not in (given.get("training") or {}):
                    return (name, *rest[1:])
        first = _name_in(given, owner, first)
    below = _member_at(given, (first,), None)
    return (first, *_as_written(tuple(rest), below, inner))


def _name_in(given: Mapping[str, Any], owner: Any, name: str | int) -> str | int:
    """Return the name under which a field of a block was given: its own or its old one."""
    old = [old for old, new in getattr(owner, "renamed", {}).items() if new == name and old in given]
    return old[0] if old and name not in given else name


def _quietly(read: Callable[[Any], Any], given: Any) -> Any:
    try:
        return read(given)
    except (ValidationError, UserError):
        return None


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
        key = getattr(read, "renamed", {}).get(key, key)
        by_alias = {info.alias or name: name for name, info in type(read).model_fields.items()}
        if key not in by_alias and isinstance(read, WithTraining):
            return _member(read.training, key)
        return getattr(read, by_alias.get(key, ""), None)
    return None
