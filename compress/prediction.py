"""Predictions for lines of text or rows of a table, from an export or a model folder, as JSON lines or CSV."""

from __future__ import annotations

import csv
import io
import json
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from compress.export.runtime.given_example import DOCUMENT
from compress.export.runtime.windows import windows
from compress.export.targets.library import ExportError
from eval.data.columns import matched_columns
from eval.data.readers import format_of, read
from eval.errors import UserError, quantity
from eval.kinds.kind import Kind
from eval.kinds.kind_registry import kind_of

Item = str | Mapping[str, Any]
Answering = Callable[[Iterable[Item]], Iterator[bytes]]
"""What answers lines or examples: JSON lines, one or many at a time, in their order."""
TABLES = (".csv", ".tsv", ".parquet")
PREDICTED = "predicted_"
"""What stands before the names of a prediction's fields in a table, which may have fields of the same names."""
AT_ONCE = 256
"""Examples that a model folder answers together."""


def is_table(file: Path) -> bool:
    """Whether a file has columns: CSV, TSV or parquet."""
    return format_of(file) in TABLES


def of_model(
    model: Any, items: Iterable[Item], chunk: int | None = None, prompt_name: str | None = None
) -> Iterator[bytes]:
    """Answer lines with a network in torch.

    Args:
        model: An artifact.
        items: As ``Runtime.stream`` takes them.
        chunk: Examples that are read before the first of them is answered.
        prompt_name: As of ``Runtime``.

    Raises:
        ExportError: If an example lacks a field or is no text; its number is counted from 1.
    """
    from compress.export.runtime.given_example import check_role, example
    from eval.inference import predict
    from eval.task import Examples

    spec = model.task
    if kind_of(spec.kind).masks:
        raise ExportError(f"a {spec.kind} model gives logits, not answers")
    if prompt_name is not None:
        check_role(prompt_name, spec.kind)
        prompt = model.encoder.settings.prompt_of(prompt_name)
        prompts = {"prompt": prompt, "query_prompt": None, "document_prompt": None}
        model = replace(model, task=spec.model_copy(update=prompts))
    for window in windows(items, chunk or AT_ONCE):
        examples = []
        for number, item in enumerate(window.items, start=window.first):
            try:
                examples.append(example(item, spec.kind, spec.pair))
            except ExportError as error:
                raise ExportError(f"example {number}: {error}") from None
        for answer in predict(model, Examples(examples)).answers:
            yield json.dumps(answer, ensure_ascii=False).encode() + b"\n"


def of_table(
    file: Path, kind: str, pair: bool, text: Sequence[str], answer: Answering, as_csv: bool
) -> Iterator[bytes]:
    """Yield the rows of a table with their predictions beside, one line each; a header first for CSV.

    Args:
        file: The table.
        kind: Kind of the model's task.
        pair: Whether it reads pairs.
        text: Columns that hold its texts; without any, usual names are looked for.
        answer: Answers examples.
        as_csv: Whether the lines are CSV; else they are JSON.

    Raises:
        UserError: If a row cannot be read, or no column holds a text.
    """
    asked = kind_of(kind)
    fields = asked.given(pair)
    if text and len(text) != len(fields):
        raise UserError(f"--text: the model reads {' and '.join(fields)}; name {quantity(len(fields), 'column')}")
    rows = iter(read(file))
    first = next(rows, None)
    if first is None:
        raise UserError(f"{file}: is empty; put rows below the names of the columns into it")
    columns = matched_columns(asked, first.values, dict(zip(fields, text, strict=False)), labelled=False)
    columns = {field: columns.get(field, field) for field in fields}
    waiting: deque[Mapping[str, Any]] = deque()

    def examples() -> Iterator[Mapping[str, Any]]:
        for row in chain([first], rows):
            if row.problem:
                raise UserError(f"{row.where}: {row.problem}")
            if lacking := [name for name in columns.values() if name not in row.values]:
                there = f"there is no column {lacking[0]!r}; there are {', '.join(map(repr, row.values))}"
                raise UserError(f"{row.where}: {there}; name it with --text COLUMN")
            waiting.append(row.values)
            given = {field: row.values[column] for field, column in columns.items()}
            beside = _told_beside(asked, row.values, columns.values())
            told = {name: row.values[name] for name in beside if row.values[name] not in (None, "")}
            yield {f: asked.parsed(f, value, given) if row.written else value for f, value in given.items()} | told

    header: list[str] = []
    for lines in answer(examples()):
        for line in lines.splitlines():
            predicted = {f"{PREDICTED}{name}": value for name, value in json.loads(line).items()}
            values = {**waiting.popleft(), **predicted}
            if not as_csv:
                yield _as_json(values).encode() + b"\n"
                continue
            if not header:
                header = list(values)
                yield _csv_line(header)
            if more := [name for name in values if name not in header]:  # of JSON lines
                raise UserError(f"{file}: the first row has no {more[0]!r}, as another has; name an --out without .csv")
            yield _csv_line(values.get(name) for name in header)


def _told_beside(kind: Kind, columns: Iterable[str], texts: Collection[str]) -> tuple[str, ...]:
    """Return the columns, other than those of texts, that say of what kind a text is, or have a title before it."""
    beside = (*DOCUMENT, "prompt_name") if kind.vectors else ()
    return tuple(name for name in beside if name in columns and name not in texts)


def _csv_line(cells: Iterable[Any]) -> bytes:
    written = io.StringIO()
    plain = (_as_json(cell) if isinstance(cell, list | dict) else cell for cell in cells)
    csv.writer(written, lineterminator="\n").writerow(plain)
    return written.getvalue().encode()


def _as_json(value: Any) -> str:
    """Return a value as JSON; what that has no form for, such as a date, as a text."""
    return json.dumps(value, ensure_ascii=False, default=str)
