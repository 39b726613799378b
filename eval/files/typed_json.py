"""Our own JSON files, read as typed values: a file that was damaged or edited is refused with what is wrong in it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from eval.errors import UserError
from eval.files.json_text import JsonError, read_json

Model = TypeVar("Model", bound=BaseModel)
SHOWN = 5
"""Errors of one file that a message names."""


def read_typed(file: Path, model: type[Model], cure: str, version: int | None = None) -> Model:
    """Read a JSON file that the toolkit wrote.

    Args:
        file: The file.
        model: What it holds.
        cure: What to do if it is damaged.
        version: The ``format`` that it must have, if it says one.

    Raises:
        UserError: If it cannot be read, is of another format, or holds something else; the fields are named.
    """
    values = read_values(file, cure)
    found = values.get("format", version) if isinstance(values, dict) else version
    if found != version and version is not None:
        raise UserError(f"{file}: format {repr(found)[:60]}; this version knows format {version}")
    read: Model = typed(values, model, str(file), cure)
    return read


def read_values(file: Path, cure: str) -> Any:
    """Read a JSON file whose content is checked elsewhere.

    Raises:
        UserError: If it cannot be read or is not JSON.
    """
    try:
        return read_json(file)
    except JsonError as error:
        raise UserError(f"{file}: {error}; {cure}") from error
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror or error}); {cure}") from error


def json_digest(values: Any) -> str:
    """Return the SHA-256 of plain JSON values, whatever the order of their names.

    Example:
        >>> json_digest({"a": 1, "b": 2}) == json_digest({"b": 2, "a": 1})
        True
    """
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def typed(values: Any, model: Any, where: str, cure: str) -> Any:
    """Return JSON values as what they should be.

    Args:
        values: The values.
        model: A pydantic model, or any type that pydantic knows.
        where: What messages call the values.
        cure: What to do if they are something else.

    Raises:
        UserError: If they are something else; the fields are named.
    """
    try:
        return TypeAdapter(model).validate_python(values)
    except ValidationError as error:
        found = [_sentence(where, part) for part in error.errors(include_url=False)]
        more = [f"{where}: and {len(found) - SHOWN:,} more errors"] if len(found) > SHOWN else []
        raise UserError(*(f"{sentence}; {cure}" for sentence in found[:SHOWN]), *more) from error


def _sentence(where: str, part: Mapping[str, Any]) -> str:
    place = ".".join(str(key)[:60] for key in part["loc"])
    message = str(part["msg"]).removeprefix("Value error, ")
    return f"{where}: {place + ': ' if place else ''}{message[:1].lower()}{message[1:300]}"
