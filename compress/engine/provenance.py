"""What a kept folder was made from, as a digest, so that it is found again only while nothing of that has changed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from compress.artifact.lineage import FILE as LINEAGE
from compress.artifact.lineage import read_lineage
from compress.export.runtime.manifest import MANIFEST, sha256
from eval.errors import UserError
from eval.files.typed_json import json_digest, read_typed

if TYPE_CHECKING:
    from compress.artifact.artifact import Artifact
    from compress.artifact.record import Record

TOLD = ("README.md", LINEAGE)
"""Files of an artifact that tell about it and hold times of day or figures; no answer depends on them."""


def content_of(folder: Path) -> str:
    """Return the SHA-256 over all files of an artifact folder that its answers depend on."""
    files = {file.name: sha256(file) for file in sorted(folder.iterdir()) if file.is_file() and file.name not in TOLD}
    return json_digest(files)


def is_of(folder: Path, artifact: Artifact) -> bool:
    """Whether an artifact folder was made by the same steps from the same, and holds the same weights."""
    try:
        return _history(read_lineage(folder / LINEAGE)) == _history(artifact.lineage)
    except (UserError, OSError):
        return False


def _history(lineage: Sequence[Record]) -> list[Any]:
    told = {"chosen_on", "facts", "size_before", "size_after", "libraries", "seconds"}
    return [record.model_dump(mode="json", exclude=told) for record in lineage]


class _Source(BaseModel):
    made_from: str | None = None


class _Manifest(BaseModel):
    source: _Source


def export_made_from(folder: Path) -> str | None:
    """Return the digest that an export was made from; None if there is none, or an export that does not say it."""
    try:
        return read_typed(folder / MANIFEST, _Manifest, "export it anew").source.made_from
    except UserError:
        return None
