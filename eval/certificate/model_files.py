"""The files of a model: every one in its folder, with size and digest."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from eval.certificate.contents import File
from eval.errors import UserError

TOLD = ("README.md",)
"""Files that tell about a model; the card of a certified one quotes its certificate."""
BESIDE = (".cert", ".sig")
"""Ends of names of what may lie beside a model: its certificate and the signature of that."""


def model_files(folders: Sequence[Path]) -> dict[str, File]:
    """Return the files of a model, or of several teachers, each with its number before its files.

    Hidden files, the model card and certificates are left out.

    Raises:
        UserError: One is no folder or holds a link to one, or a file cannot be read.
    """
    found = {}
    for number, folder in enumerate(folders, start=1):
        if not folder.is_dir():
            raise UserError(f"{folder}: is no folder; give the folder of a model or of an export")
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            if path.is_symlink() and path.is_dir():
                raise UserError(f"{path}: is a link to a folder, whose files may change unseen; put the folder there")
            if path.is_file() and not _left_out(name):
                found[f"{number}/{name}" if len(folders) > 1 else name] = _file(path)
    return found


def _left_out(name: str) -> bool:
    return name in TOLD or name.endswith(BESIDE) or any(part.startswith(".") for part in name.split("/"))


def _file(path: Path) -> File:
    try:
        with path.open("rb") as stream:
            return File(path.stat().st_size, hashlib.file_digest(stream, "sha256").hexdigest())
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error
