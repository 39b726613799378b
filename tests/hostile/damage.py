"""Ways to damage the files of a scene; each returns a function of the scene's folder."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Damage = Callable[[Path], None]


def write(name: str, content: str | bytes) -> Damage:
    """Write a file, which may be there already."""

    def act(scene: Path) -> None:
        path = scene / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))

    return act


def append(name: str, content: str | bytes) -> Damage:
    """Add to the end of a file."""

    def act(scene: Path) -> None:
        path = scene / name
        path.write_bytes(path.read_bytes() + (content if isinstance(content, bytes) else content.encode()))

    return act


def remove(*names: str) -> Damage:
    """Remove files or folders."""

    def act(scene: Path) -> None:
        for name in names:
            path = scene / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return act


def truncate(name: str, size: int) -> Damage:
    """Cut a file to its first bytes."""
    return lambda scene: os.truncate(scene / name, size)


def flip(name: str, byte: int) -> Damage:
    """Turn one bit of a byte; a negative number counts from the end."""

    def act(scene: Path) -> None:
        content = bytearray((scene / name).read_bytes())
        content[byte] ^= 1
        (scene / name).write_bytes(bytes(content))

    return act


def link(name: str, target: str) -> Damage:
    """Put a symbolic link in the place of a file or folder."""

    def act(scene: Path) -> None:
        path = scene / name
        if path.exists() or path.is_symlink():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        path.symlink_to(target)

    return act


def device(name: str, minor: int) -> Damage:
    """Make a memory device of Linux under a name of our own (3 takes everything, 7 is always full).

    Never ``/dev/…`` itself: run as root, a command that replaces what it should write to would break the machine.
    """

    def act(scene: Path) -> None:
        try:
            os.mknod(scene / name, stat.S_IFCHR | 0o666, os.makedev(1, minor))
            (scene / name).open("wb").close()
        except PermissionError:
            pytest.skip("devices can be made by root alone, on a file system that allows them")

    return act


def json_set(name: str, key: str, value: Any) -> Damage:
    """Set a value of a JSON file; ``key`` is a way such as ``records.0.seed``, empty for the whole."""

    def act(scene: Path) -> None:
        path = scene / name
        if not key:
            path.write_text(value if isinstance(value, Raw) else json.dumps(value), encoding="utf-8")
            return
        top = json.loads(path.read_text(encoding="utf-8"))
        node, last = _parent(top, key)
        node[last] = "\x00" if isinstance(value, Raw) else value
        text = json.dumps(top)
        path.write_text(text.replace('"\\u0000"', value) if isinstance(value, Raw) else text, encoding="utf-8")

    return act


def json_drop(name: str, key: str) -> Damage:
    """Remove a key of a JSON file."""

    def act(scene: Path) -> None:
        path = scene / name
        top = json.loads(path.read_text(encoding="utf-8"))
        node, last = _parent(top, key)
        del node[last]
        path.write_text(json.dumps(top), encoding="utf-8")

    return act


def tensors(name: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Damage:
    """Change the tensors of a safetensors file."""

    def act(scene: Path) -> None:
        from safetensors.torch import load_file, save_file

        save_file(change(load_file(scene / name)), scene / name, metadata={"format": "pt"})

    return act


class Raw(str):
    """JSON text as it shall stand in a file, such as ``1e999`` or a thousand brackets."""


DEEP = Raw("[" * 100_000 + "]" * 100_000)
"""Nested deeper than a parser by recursion can follow."""
HUGE = Raw("9" * 5000)
"""More digits than Python turns into an integer."""
WRONG: dict[str, Any] = {
    "null": None,
    "text": "nonsense",
    "number": -7,
    "fraction": 0.5,
    "infinite": Raw("1e999"),
    "no number": Raw("NaN"),
    "huge": HUGE,
    "deep": DEEP,
    "list": [[]],
    "object": {"a": {}},
    "true": True,
    "long": "x" * 1_000_000,
}
"""Name -> value that does not belong."""


def _parent(top: Any, key: str) -> tuple[Any, Any]:
    *way, last = [int(part) if part.isdigit() else part for part in key.split(".")]
    for part in way:
        top = top[part]
    return top, last


def json_update(name: str, change: Callable[[Any], Any]) -> Damage:
    """Replace what a JSON file holds by what ``change`` returns for it."""

    def act(scene: Path) -> None:
        path = scene / name
        path.write_text(json.dumps(change(json.loads(path.read_text(encoding="utf-8")))), encoding="utf-8")

    return act
