"""What a user gives an export to answer, a line or a mapping, as an example with the fields that its model reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from compress.export.targets.library import ExportError
from eval.files.json_text import JsonError, parse_json
from eval.kinds.kind_registry import kind_of
from eval.kinds.reading import Reading


def example(item: str | Mapping[str, Any], kind: str, pair: bool) -> dict[str, Any]:
    """Turn a line into an example, or check the fields of an example.

    Args:
        item: A mapping; or a line: a JSON object with the fields of the data, a text, words with white space between
            them (tagging), or two texts with a tab between them (pairs; question and context), or a text and its
            choices with tabs between them (multiple-choice). For embedding a line is one text, and an object may hold
            ``text`` or ``text_a`` and ``text_b``.
        kind: Kind of task.
        pair: Whether examples are pairs of texts.

    Raises:
        ExportError: If a field is missing or is no text, or a line has too few tabs or too many.
    """
    asked = kind_of(kind)
    fields = asked.given(pair)
    values = _fields_of(item, fields, asked) if isinstance(item, str) else item
    if not isinstance(values, Mapping):
        raise ExportError(f"expected a text or an object with {' and '.join(fields)}, got {type(item).__name__}")
    if asked.others and asked.others[0] in values:
        fields = asked.others
    missing = [field for field in fields if field not in values]
    if missing:
        raise ExportError(f"lacks {' and '.join(missing)}; its fields are {', '.join(map(str, values)) or 'none'}")
    least = asked.lists
    checked = {
        field: _texts_of(values[field], field, least[field]) if field in least else text_of(values[field], field)
        for field in fields
    }
    return {**values, **checked}


def _fields_of(line: str, fields: tuple[str, ...], kind: Reading) -> dict[str, Any]:
    """Return the fields of a line."""
    if line.lstrip().startswith("{"):
        try:
            found = parse_json(line)
        except JsonError:
            found = None
        # A lone text may look like JSON; two texts in one line never do.
        if isinstance(found, dict) and (len(fields) > 1 or not found.keys().isdisjoint({fields[0], *kind.others})):
            return found
    try:
        return kind.read_line(line, fields)
    except ValueError as error:
        raise ExportError(str(error)) from None


def _texts_of(value: Any, field: str, least: int) -> list[str]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ExportError(f"{field} must be a list of texts, got {type(value).__name__}")
    if len(value) < least:
        raise ExportError(f"{field} must be a list of {least} texts or more, got {len(value)}")
    return [text_of(text, f"each of {field}") for text in value]


def text_of(value: Any, field: str) -> str:
    """Return a value that must be a text.

    Raises:
        ExportError: It is none.
    """
    if not isinstance(value, str):
        raise ExportError(f"{field} must be a text, got {type(value).__name__}")
    return value.encode("utf-8", "replace").decode("utf-8")  # half a surrogate pair is no character
