"""Lineages on disk: ``lineage.json``, in which every record carries its own digest and that of the one before."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from compress.artifact import Record
from eval.errors import UserError

FILE = "lineage.json"
FORMAT = 2
"""Version of ``lineage.json``."""
PLAIN = 1
"""The version whose records had no digests."""
ANEW = "copy the folder anew from where it was made"


def write_lineage(records: Sequence[Record], file: Path) -> None:
    """Write records, each chained to the one before."""
    rows: list[dict[str, Any]] = []
    for record in records:
        row = record.model_dump(mode="json") | {"previous": rows[-1]["digest"] if rows else None}
        rows.append(row | {"digest": _digest(row)})
    values = {"format": FORMAT, "records": rows, "last": rows[-1]["digest"] if rows else None}
    file.write_text(json.dumps(values, indent=1), encoding="utf-8")


def read_lineage(file: Path) -> tuple[Record, ...]:
    """Return the records of a file.

    Raises:
        UserError: If it is damaged or of a later version, or a record was changed or is missing.
    """
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        if values["format"] not in (PLAIN, FORMAT):
            raise UserError(f"{file}: format {values['format']}, this version reads format {FORMAT} and before")
        rows = values["records"]
        if values["format"] == FORMAT:
            rows = _unchained(rows, values["last"], file)
        records = tuple(Record.model_validate(row) for row in rows)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, ValidationError) as error:
        raise UserError(f"{file}: not a lineage ({str(error).splitlines()[0]}); {ANEW}") from error
    if not records:
        raise UserError(f"{file}: holds no record; {ANEW}")
    for number, record in enumerate(records, start=1):
        if record.weights_before != (records[number - 2].weights_after if number > 1 else None):
            raise UserError(_gap(file, number, record.technique))
    return records


def _unchained(rows: Sequence[Mapping[str, Any]], last: str | None, file: Path) -> list[dict[str, Any]]:
    """Return the rows without their digests, once these were found right."""
    previous: str | None = None
    plain = []
    for number, row in enumerate(rows, start=1):
        values = dict(row)
        technique, digest = str(values["technique"])[:60], values.pop("digest")
        if digest != _digest(values):
            raise UserError(f"{file}: record {number}, {technique}, was changed after it was written; {ANEW}")
        if values.pop("previous") != previous:
            raise UserError(_gap(file, number, technique))
        previous = digest
        plain.append(values)
    if previous != last:
        raise UserError(f"{file}: holds {len(plain)} records, and the last one is missing; {ANEW}")
    return plain


def _gap(file: Path, number: int, technique: str) -> str:
    return (
        f"{file}: record {number}, {technique}, does not follow from the one before; "
        f"one is missing or was changed; {ANEW}"
    )


def _digest(row: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()
