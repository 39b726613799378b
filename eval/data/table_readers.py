"""Readers of tables: CSV, TSV, parquet and the data sets of the datasets library."""

from __future__ import annotations

import csv
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from eval.errors import UserError, quantity
from eval.files.rows import NOT_UTF8, Row, text_lines

SHOWN_COLUMNS = 10
DELIMITERS = ",;\t"
"""What may separate the cells of a CSV file: the first of these that its header has outside of quotes."""
BATCH = 1000
"""Rows of a parquet file in memory at a time."""


def read_tsv(path: Path) -> Iterator[Row]:
    """Yield the rows below a header; quotes are plain characters, as in the GLUE files."""
    lines = ((where, None if line is None else line.split("\t")) for where, line in text_lines(path))
    yield from _table(row for row in lines if row[1] != [""])


def read_csv(path: Path) -> Iterator[Row]:
    """Yield the rows below a header; a quoted cell may hold commas, quotes (doubled) and line breaks.

    A header without a comma, but with semicolons or tabs, is one of a table that these separate.
    """
    yield from _table(_csv_cells(path))


def _csv_cells(path: Path) -> Iterator[tuple[str, list[str] | str | None]]:
    unreadable: list[str] = []
    spanned: list[str] = []
    place = ""

    def lines() -> Iterator[str]:
        nonlocal place
        for where, line in text_lines(path):
            place = where
            spanned.append(where)
            if line is None:
                unreadable.append(where)
            yield "\n" if line is None else line + "\n"

    csv.field_size_limit(sys.maxsize)  # as long as a line of any other format may be
    reader = csv.reader(lines(), strict=True, delimiter=_delimiter(path))
    while True:
        spanned.clear()
        try:
            found: list[str] | str = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            found = f"is not CSV ({error})"
        if unreadable:
            yield from ((where, None) for where in unreadable)
            unreadable.clear()
        elif isinstance(found, str) and len(spanned) > 1:  # all these lines are lost, and the first is to be mended
            first, last = (where.rpartition(":")[2] for where in (spanned[0], place))
            yield spanned[0], f"{found[:-1]} in line {last}); is a quote here never closed?"
            yield from ((where, f"is lost with the record that begins in line {first}") for where in spanned[1:])
        elif found:
            yield place, found


def _delimiter(path: Path) -> str:
    header = next((line for _, line in text_lines(path) if line is None or line.strip()), None) or ""
    names = re.sub(r'"[^"]*"', "", header)  # a column may be called "a, b"
    return next((mark for mark in DELIMITERS if mark in names), DELIMITERS[0])


def _table(rows: Iterable[tuple[str, list[str] | str | None]]) -> Iterator[Row]:
    header: list[str] | None = None
    for where, cells in rows:
        if cells is None:
            yield Row(where, problem=NOT_UTF8)
            if header is None:  # without it nobody knows what stands below
                return
        elif isinstance(cells, str):
            yield Row(where, problem=cells)
        elif header is None:
            header = [name.strip() for name in cells]
            if twice := [name for name, count in Counter(header).items() if name and count > 1]:
                named = ", ".join(map(repr, twice))
                raise UserError(f"{where}: the header names {named} twice; give each column a name of its own")
        elif len(cells) != len(header):
            named = ", ".join(header[:SHOWN_COLUMNS]) + (", ..." if len(header) > SHOWN_COLUMNS else "")
            columns = quantity(len(header), "column")
            problem = f"has {quantity(len(cells), 'cell')}, but the header names {columns}: {named}"
            yield Row(where, problem=problem)
        else:
            yield Row(where, dict(zip(header, cells, strict=True)), written=True)


def read_parquet(path: Path) -> Iterator[Row]:
    """Yield the rows of a parquet file; class numbers become names where the file carries them."""
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            batches = (row for batch in file.iter_batches(BATCH) for row in batch.to_pylist())
            yield from _named(batches, _features(file.schema_arrow, path), str(path))
    except (pyarrow.ArrowException, ValueError, OverflowError) as error:  # a date before the year 1, for one
        raise UserError(f"{path}: cannot be read: {error}") from error


def _features(schema: Any, path: Path) -> Mapping[str, Any]:
    if b"huggingface" not in (schema.metadata or {}):
        return {}
    from datasets import Features

    try:
        return dict(Features.from_arrow_schema(schema))
    except Exception as error:  # the library believes whatever stands there
        raise UserError(
            f"{path}: its metadata for the datasets library ('huggingface') cannot be read "
            f"({type(error).__name__}: {error}); write the file anew"
        ) from error


def read_dataset(dataset: Any, where: str) -> Iterator[Row]:
    """Yield the rows of one split of the datasets library, whatever format was set for it.

    Args:
        dataset: A ``datasets.Dataset``.
        where: What places in it are called.
    """
    yield from _named(iter(dataset.with_format(None)), dataset.features, where)


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
