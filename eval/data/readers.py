"""One reader a file format; each streams rows with the place they stand at, and says what it could not read.

A reader knows nothing of tasks: it yields the fields that a row has, under the names of the file. Bad rows do not end
the reading; they are yielded with their problem, so that all of them can be shown at once.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eval.data.table_readers import read_csv, read_parquet, read_tsv
from eval.errors import UserError
from eval.files.json_text import JsonError, parse_json
from eval.files.paths import near_path
from eval.files.rows import NOT_UTF8, Row, text_lines

FORMATS = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".txt")
"""File name endings that are read; all but parquet also with ``.gz`` behind them."""


def format_of(path: Path) -> str | None:
    """Return the ending that decides how a file is read, ``.gz`` left out; None if it is not known."""
    name = path.name.removesuffix(".gz")
    suffix = Path(name).suffix.lower()
    if suffix not in FORMATS or (suffix == ".parquet" and name != path.name):
        return None
    return suffix


def read(path: Path) -> Iterator[Row]:
    """Yield the rows of a file.

    Raises:
        UserError: The format is not known, or the file cannot be read at all.
    """
    reader = READERS.get(format_of(path) or "")
    if reader is None:
        raise UserError(f"{path}: unknown format; allowed: {', '.join(FORMATS)}, and .gz behind all but .parquet")
    try:
        yield from reader(path)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path}: cannot be read: {reason}{'' if path.exists() else near_path(path)}") from error


def read_text(path: Path) -> Iterator[Row]:
    """Yield one ``text`` a line. Blank lines are left out; if they part documents, each is a ``group`` of its lines."""
    several, document = _several_documents(path), 1
    for where, line in text_lines(path):
        if line is None:
            yield Row(where, problem=NOT_UTF8)
        elif not line.strip():
            document += 1
        else:
            values = {"text": line.strip()}
            yield Row(where, values | {"group": f"document {document}"} if several else values)


def _several_documents(path: Path) -> bool:
    """Return whether a blank line stands between lines of text."""
    written = ended = False
    for _, line in text_lines(path):
        if line is not None and not line.strip():
            ended = written
        elif ended:
            return True
        else:
            written = True
    return False


def read_jsonl(path: Path) -> Iterator[Row]:
    """Yield one JSON object a line; blank lines are left out."""
    for where, line in text_lines(path):
        if line is None:
            yield Row(where, problem=NOT_UTF8)
        elif line.strip():
            yield _json_row(where, line)


def _json_row(where: str, line: str) -> Row:
    try:
        value = parse_json(line)
    except JsonError as error:
        return Row(where, problem=str(error))
    return Row(where, value) if isinstance(value, dict) else Row(where, problem=_not_object(value))


def _not_object(value: Any) -> str:
    try:
        shown = json.dumps(value, ensure_ascii=False)[:40]
    except RecursionError:
        shown = "a value that is nested too deeply"
    return f"must be a JSON object {{...}}, not {shown}"


def read_json(path: Path) -> Iterator[Row]:
    """Yield the questions of a SQuAD file, an article of RACE, the objects of an array or of lines: what it holds."""
    first = next((line for _, line in text_lines(path) if line is None or line.strip()), "")
    if first == "" or (first is not None and _is_record(first)):
        yield from read_jsonl(path)
        return
    texts = list(text_lines(path))
    broken = [where for where, line in texts if line is None]
    if broken:
        yield from (Row(where, problem=NOT_UTF8) for where in broken)
        return
    try:
        value = parse_json("\n".join(line or "" for _, line in texts))
    except JsonError as error:
        yield Row(str(path), problem=str(error))
        return
    if isinstance(value, list):
        for number, item in enumerate(value, start=1):
            where = f"{path}: item {number}"
            yield Row(where, item) if isinstance(item, dict) else Row(where, problem=_not_object(item))
    elif isinstance(value, dict) and "article" in value:
        yield Row(str(path), value)
    else:
        yield from _squad(value, f"{path}: ")


def _is_record(line: str) -> bool:
    try:
        value = parse_json(line)
    except JsonError:
        return False
    return isinstance(value, dict) and not isinstance(value.get("data"), list)


def _squad(value: Any, where: str) -> Iterator[Row]:
    """Walk ``data[].paragraphs[].qas[]``; what is not so formed becomes a bad row at its place."""
    bad: list[Row] = []

    def members(parent: Any, key: str, place: str) -> Iterator[tuple[str, Any]]:
        items = parent.get(key) if isinstance(parent, dict) else None
        if isinstance(items, list):
            yield from ((f"{place}{'.' * (place != where)}{key}[{number}]", item) for number, item in enumerate(items))
        else:
            bad.append(
                Row(place.removesuffix(": "), problem=f"must be an object with a list {key!r}, as in SQuAD files")
            )

    for article_place, article in members(value, "data", where):
        for paragraph_place, paragraph in members(article, "paragraphs", article_place):
            for place, question in members(paragraph, "qas", paragraph_place):
                if isinstance(question, dict):
                    yield Row(place, {**question, "context": paragraph.get("context")})
                else:
                    yield Row(place, problem=_not_object(question))
    yield from bad


READERS = {
    ".jsonl": read_jsonl,
    ".json": read_json,
    ".csv": read_csv,
    ".tsv": read_tsv,
    ".parquet": read_parquet,
    ".txt": read_text,
}
