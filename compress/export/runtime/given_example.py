"""What a user gives an export to answer, a line or a mapping, as an example with the fields that its model reads."""

from __future__ import annotations

import os.path
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from compress.export.targets.library import ExportError
from eval.examples import ROLES, TEXT, with_title
from eval.files.json_text import JsonError, parse_json
from eval.kinds.kind_registry import kind_of
from eval.kinds.reading import Reading

JSON_LINES = ".jsonl"
"""The ending of a file that holds a JSON object a line."""
TABLE_ENDINGS = (".csv", ".tsv", ".parquet", ".csv.gz", ".tsv.gz")
"""The endings of files that hold no lines, but rows of several columns."""
MOST_TOLD = 20
"""Examples that a message names."""
DOCUMENT = ("_id", "title")
"""Fields by which a line of a corpus is known."""


def example(item: str | Mapping[str, Any], kind: str, pair: bool) -> dict[str, Any]:
    """Turn a line into an example, or check the fields of an example.

    Args:
        item: A mapping; or a line: a JSON object with the fields of the data, a text, words with white space between
            them (tagging), or two texts with a tab between them (pairs; question and context), or a text and its
            choices with tabs between them (multiple-choice). For embedding a line is one text, and an object may hold
            ``text`` or ``text_a`` and ``text_b``. The ``title`` of a document, as a line of a corpus has it, is put
            before its text, as where documents are searched. ``prompt_name`` says whether it is a query or a document.
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
    checked: dict[str, Any] = {
        field: _texts_of(values[field], field, least[field]) if field in least else text_of(values[field], field)
        for field in fields
    }
    if asked.vectors and "prompt_name" in values:
        check_role(values["prompt_name"], kind)
    if asked.vectors and fields == TEXT and not values.keys().isdisjoint(DOCUMENT):
        title = values.get("title")
        checked["text"] = with_title(checked["text"], None if title is None else text_of(title, "title"))
        values = {field: value for field, value in values.items() if field != "title"}
    return {**values, **checked}


def check_role(role: Any, kind: str) -> None:
    """Refuse what no text of a kind of task can be.

    Raises:
        ExportError: It is neither a query nor a document, or the kind knows none.
    """
    if not kind_of(kind).vectors:
        raise ExportError(f"prompt_name: is for embedders, and this is {kind_of(kind).named} model; leave it out")
    if role not in ROLES:
        raise ExportError(f"prompt_name: got {str(role)[:60]!r}, must be {' or '.join(ROLES)}")


def refuse_file_name(texts: Sequence[str]) -> None:
    """Refuse texts of a command line that are the name of a file.

    Raises:
        ExportError: There is one alone, and it is the name of a file.
    """
    if len(texts) == 1 and os.path.isfile(texts[0]):
        raise ExportError(
            f"{texts[0]}: is a file; give it with --file, or, if the name itself is the text, on standard input"
        )


def file_items(file: str, lines: Iterable[str], kind: str, pair: bool) -> Iterator[str | dict[str, Any]]:
    """Yield what a file gives to answer: its lines, or of a ``.jsonl`` the examples that its objects are.

    Args:
        file: Its name.
        lines: Its lines; those of a ``.jsonl`` without a word are left out, as everywhere.
        kind: Kind of task.
        pair: Whether examples are pairs of texts.

    Raises:
        ExportError: The file is empty or a table, or lines of a ``.jsonl`` are no such objects; all of them at once.
    """
    if file.lower().endswith(TABLE_ENDINGS):
        raise ExportError(
            f"{file}: is a table, and only lines are read here; save its column with the texts as .txt, a text a line, "
            f"or its rows as {JSON_LINES}; 'compress predict --file' of the toolkit reads tables"
        )
    empty = True
    objects = file.lower().removesuffix(".gz").endswith(JSON_LINES)
    for item in _objects(file, lines, kind, pair) if objects else lines:
        empty = False
        yield item
    if empty:
        raise ExportError(f"{file}: is empty; put what shall be answered into it, one line each")


def _objects(file: str, lines: Iterable[str], kind: str, pair: bool) -> Iterator[dict[str, Any]]:
    """Yield the examples before the first line that is none; then read on, to tell all such lines."""
    problems: list[str] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found = example(_object(line), kind, pair)
        except (ExportError, JsonError) as error:
            problems.append(f"{file}:{number}: {error}")
        else:
            if not problems:
                yield found
    if problems:
        asked = kind_of(kind)
        forms = " or ".join(" and ".join(map(repr, form)) for form in (asked.given(pair), asked.others) if form)
        allowed = f"each line of a {JSON_LINES} file must be a JSON object with {forms}; plain lines belong into a .txt"
        raise ExportError("\n".join([*most_told(problems), allowed]))


def _object(line: str) -> dict[str, Any]:
    value = parse_json(line)
    if not isinstance(value, dict):
        raise ExportError(f"must be a JSON object {{...}}, not {line.strip()[:40]}")
    return value


def most_told(problems: Sequence[str]) -> list[str]:
    """Return the first ``MOST_TOLD`` problems, and how many more there are."""
    left = len(problems) - MOST_TOLD
    return [*problems[:MOST_TOLD], *([f"and {left} more"] if left > 0 else [])]


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
