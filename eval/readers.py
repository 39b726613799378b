"""One reader a file format; each streams rows with the place they stand at, and says what it could not read.

A reader knows nothing of tasks: it yields the fields that a row has, under the names of the file. Bad rows do not end
the reading; they are yielded with their problem, so that all of them can be shown at once.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eval.errors import UserError

FORMATS = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".txt")
"""File name endings that are read; all but parquet also with ``.gz`` behind them."""
BATCH = 1000
"""Rows of a parquet file in memory at a time."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a file.

    Attributes:
        where: The place, such as ``data/train.jsonl:12``.
        values: Its fields by name.
        problem: Why there are no values, or empty.
        written: Whether every value is as written in a text table, so that numbers and lists are still strings.
    """

    where: str
    values: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""
    written: bool = False


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
        raise UserError(f"{path}: cannot be read: {error}") from error


def _lines(path: Path) -> Iterator[tuple[str, str | None]]:
    """Yield (place, text without its line break), with None for a line that is not UTF-8."""
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            data = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            try:
                text = data.decode("utf-8")
            except UnicodeDecodeError:
                yield f"{path}:{number}", None
            else:
                yield f"{path}:{number}", text.removesuffix("\n").removesuffix("\r")


NOT_UTF8 = "is not valid UTF-8; save the file as UTF-8"


def read_text(path: Path) -> Iterator[Row]:
    """Yield one ``text`` a line; blank lines (ends of documents) are left out."""
    for where, line in _lines(path):
        if line is None:
            yield Row(where, problem=NOT_UTF8)
        elif line.strip():
            yield Row(where, {"text": line.strip()})


def read_jsonl(path: Path) -> Iterator[Row]:
    """Yield one JSON object a line; blank lines are left out."""
    for where, line in _lines(path):
        if line is None:
            yield Row(where, problem=NOT_UTF8)
        elif line.strip():
            yield _json_row(where, line)


def _json_row(where: str, line: str) -> Row:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        return Row(where, problem=f"is not JSON ({error})")
    return Row(where, value) if isinstance(value, dict) else Row(where, problem=_not_object(value))


def _not_object(value: Any) -> str:
    return f"must be a JSON object {{...}}, not {json.dumps(value, ensure_ascii=False)[:40]}"


def read_tsv(path: Path) -> Iterator[Row]:
    """Yield the rows below a header; quotes are plain characters, as in the GLUE files."""
    lines = ((where, None if line is None else line.split("\t")) for where, line in _lines(path))
    yield from _table(row for row in lines if row[1] != [""])


def read_csv(path: Path) -> Iterator[Row]:
    """Yield the rows below a header; a quoted cell may hold commas, quotes (doubled) and line breaks."""
    yield from _table(_csv_cells(path))


def _csv_cells(path: Path) -> Iterator[tuple[str, list[str] | str | None]]:
    unreadable: list[str] = []
    place = ""

    def lines() -> Iterator[str]:
        nonlocal place
        for where, line in _lines(path):
            place = where
            if line is None:
                unreadable.append(where)
            yield "\n" if line is None else line + "\n"

    reader = csv.reader(lines(), strict=True)
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            yield place, f"is not CSV ({error})"
            continue
        for where in unreadable:
            yield where, None
        if cells and not unreadable:
            yield place, cells
        unreadable.clear()


def _table(rows: Iterable[tuple[str, list[str] | str | None]]) -> Iterator[Row]:
    header: list[str] | None = None
    for where, cells in rows:
        if cells is None:
            yield Row(where, problem=NOT_UTF8)
        elif isinstance(cells, str):
            yield Row(where, problem=cells)
        elif header is None:
            header = [name.strip() for name in cells]
        elif len(cells) != len(header):
            problem = f"has {len(cells)} cells, but the header names {len(header)} columns: {', '.join(header)}"
            yield Row(where, problem=problem)
        else:
            yield Row(where, dict(zip(header, cells, strict=True)), written=True)


def read_json(path: Path) -> Iterator[Row]:
    """Yield the questions of a SQuAD file, the objects of a JSON array, or one object a line: whichever it holds."""
    first = next((line for _, line in _lines(path) if line is None or line.strip()), "") or ""
    if _is_record(first):
        yield from read_jsonl(path)
        return
    texts = list(_lines(path))
    broken = [where for where, line in texts if line is None]
    if broken:
        yield from (Row(where, problem=NOT_UTF8) for where in broken)
        return
    try:
        value = json.loads("\n".join(line or "" for _, line in texts) or "[]")
    except (ValueError, RecursionError) as error:
        yield Row(str(path), problem=f"is not JSON ({error})")
        return
    if isinstance(value, list):
        for number, item in enumerate(value, start=1):
            where = f"{path}: item {number}"
            yield Row(where, item) if isinstance(item, dict) else Row(where, problem=_not_object(item))
    else:
        yield from _squad(value, f"{path}: ")


def _is_record(line: str) -> bool:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
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
            bad.append(Row(place.removesuffix(": "), problem=f"must be an object with a list {key!r}, as in SQuAD files"))

    for article_place, article in members(value, "data", where):
        for paragraph_place, paragraph in members(article, "paragraphs", article_place):
            for place, question in members(paragraph, "qas", paragraph_place):
                if isinstance(question, dict):
                    yield Row(place, {**question, "context": paragraph.get("context")})
                else:
                    yield Row(place, problem=_not_object(question))
    yield from bad


def read_parquet(path: Path) -> Iterator[Row]:
    """Yield the rows of a parquet file; class numbers become names where the file carries them."""
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowException as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    with file:
        batches = (row for batch in file.iter_batches(BATCH) for row in batch.to_pylist())
        yield from _named(batches, _features(file.schema_arrow), str(path))


def _features(schema: Any) -> Mapping[str, Any]:
    from datasets import Features

    return dict(Features.from_arrow_schema(schema))


def read_dataset(dataset: Any, where: str) -> Iterator[Row]:
    """Yield the rows of one split of the datasets library.

    Args:
        dataset: A ``datasets.Dataset``.
        where: What places in it are called.
    """
    yield from _named(iter(dataset), dataset.features, where)


def _named(rows: Iterable[Mapping[str, Any]], features: Mapping[str, Any], where: str) -> Iterator[Row]:
    names = {column: found for column, feature in features.items() if (found := _class_names(feature)) is not None}
    for number, row in enumerate(rows, start=1):
        named = {column: _name(row[column], known) for column, known in names.items()}
        yield Row(f"{where}: row {number}", {**row, **named})


def _class_names(feature: Any) -> list[str] | None:
    inner = getattr(feature, "feature", feature)
    return list(inner.names) if type(inner).__name__ == "ClassLabel" else None


def _name(value: Any, names: list[str]) -> Any:
    """Return the name of a class number; -1 and empty values mean that there is no label."""
    if isinstance(value, list):
        return [_name(item, names) for item in value]
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else None


READERS = {
    ".jsonl": read_jsonl,
    ".json": read_json,
    ".csv": read_csv,
    ".tsv": read_tsv,
    ".parquet": read_parquet,
    ".txt": read_text,
}
