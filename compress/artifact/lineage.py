"""Lineages on disk: ``lineage.json``, in which every record carries its own digest and that of the one before."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from compress.artifact.record import Record
from eval.errors import UserError, quantity
from eval.files.typed_json import json_digest, read_values, typed

FILE = "lineage.json"
FORMAT = 3
"""Version of ``lineage.json``."""
PLAIN, SHAPED = 1, 2
"""The version whose records had no digests, and the last one whose records had a ``structure``."""
ANEW = "copy the folder anew from where it was made"


class Lineage(BaseModel):
    """What the file holds, before the records are looked at."""

    format: int
    records: list[dict[str, Any]] = Field(min_length=1)
    last: str | None = None


class Export(BaseModel):
    """What a structure said of exports."""

    int8: dict[str, Any] | None = None


class Shape(BaseModel, extra="allow"):
    """What a record had as its ``structure``: the scheme of exports, and what was cut, in names of the technique."""

    export: Export = Export()


class ShapedRecord(Record):
    """A record as formats 1 and 2 had it."""

    structure: Shape = Shape()

    def today(self) -> Record:
        """Return the same record in today's fields; what was cut is told among the facts."""
        values = self.model_dump(exclude={"structure"})
        told = {**(self.structure.model_extra or {}), **self.facts}
        return Record(**values | {"facts": told, "export_scheme": self.structure.export.int8})


def write_lineage(records: Sequence[Record], file: Path) -> None:
    """Write records, each chained to the one before."""
    rows: list[dict[str, Any]] = []
    for record in records:
        row = record.model_dump(mode="json") | {"previous": rows[-1]["digest"] if rows else None}
        rows.append(row | {"digest": json_digest(row)})
    values = {"format": FORMAT, "records": rows, "last": rows[-1]["digest"] if rows else None}
    file.write_text(json.dumps(values, indent=1), encoding="utf-8")


def read_lineage(file: Path) -> tuple[Record, ...]:
    """Return the records of a file.

    Raises:
        UserError: If it is damaged or of a later version, or a record was changed or is missing.
    """
    values = read_values(file, ANEW)
    version = values.get("format") if isinstance(values, dict) else None
    if version is not None and version not in (PLAIN, SHAPED, FORMAT):
        raise UserError(f"{file}: format {repr(version)[:60]}; this version reads format {FORMAT} and before")
    lineage: Lineage = typed(values, Lineage, str(file), ANEW)
    rows = lineage.records if version == PLAIN else _unchained(lineage.records, lineage.last, file)
    records: tuple[Record, ...]
    if version == FORMAT:
        records = typed(rows, tuple[Record, ...], f"{file}: records", ANEW)
    else:
        shaped = typed(rows, tuple[ShapedRecord, ...], f"{file}: records", ANEW)
        records = tuple(record.today() for record in shaped)
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
        technique, digest = str(values.get("technique"))[:60], values.pop("digest", None)
        if digest != json_digest(values):
            raise UserError(f"{file}: record {number}, {technique}, was changed after it was written; {ANEW}")
        if values.pop("previous", None) != previous:
            raise UserError(_gap(file, number, technique))
        previous = digest
        plain.append(values)
    if previous != last:
        raise UserError(f"{file}: holds {quantity(len(plain), 'record')}, and the last one is missing; {ANEW}")
    return plain


def _gap(file: Path, number: int, technique: str) -> str:
    return (
        f"{file}: record {number}, {technique}, does not follow from the one before; "
        f"one is missing or was changed; {ANEW}"
    )
