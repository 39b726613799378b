"""What is published of where things came from: names, never the paths of the machine they were made on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

_LOCAL = re.compile(r"[/~\\]|\.{1,2}([/\\]|$)|[A-Za-z]:[/\\]")
"""Begins a path of this machine, as against a name on the hub (``owner/name``)."""


def public_name(source: str) -> str:
    """Return what may be told of a source of data or of a model: the last name of a local path, a hub name as it is.

    Args:
        source: As the user wrote it; several with a comma and a space between them are taken one by one.
    """
    if ", " in source and not _exists(source):
        return ", ".join(public_name(part) for part in source.split(", "))
    if source and (_LOCAL.match(source) or _exists(source)):
        return _last(source)
    return source


def distinct_names(sources: Sequence[str]) -> list[str]:
    """Return the last names of paths, with as much before them as tells them apart."""
    parts = [Path(source).resolve().parts for source in sources]
    for length in range(1, max(map(len, parts), default=0)):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [part[-1] for part in parts]


def without_paths(value: Any) -> Any:
    """Return plain JSON values in which every text that is an absolute path is its last name."""
    if isinstance(value, dict):
        return {without_paths(key): without_paths(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_paths(part) for part in value]
    return _last(value) if isinstance(value, str) and _is_absolute(value) else value


def _is_absolute(text: str) -> bool:
    return PurePosixPath(text).is_absolute() or PureWindowsPath(text).is_absolute() or text.startswith("~/")


def _last(source: str) -> str:
    """Return the last name of a path; of one that ends in dots, that of the folder that is meant."""
    name = re.split(r"[/\\]", source.rstrip("/\\"))[-1]
    return name if name.strip(".~") else Path(source).absolute().resolve().name or "data"


def _exists(source: str) -> bool:
    try:
        return Path(source).exists()
    except (OSError, ValueError):  # too long, or no path at all
        return False
