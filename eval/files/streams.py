"""Standard streams that are closed, full or unread, or whose encoding lacks a character: told once, and never a crash.

Like the other parts of ``predict.py`` it imports nothing of the toolkit.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
from typing import Any, TextIO

OUTPUT_CLOSED = "standard output is closed, so what is printed would be lost; send it to a file, or to /dev/null"
JSON_ESCAPES = "json-escapes"
"""Writes what an encoding lacks as JSON does, so that JSON stays JSON."""


def guard_streams() -> str | None:
    """Make the standard streams of this process safe to use; streams that something else put in place stay.

    A closed one becomes the null device, so that no file gets its number. Standard output says once, as an ``OSError``
    that names it, that it is full or that nobody reads it, and takes everything after that, so that Python does not
    fail once more when it ends. Standard error takes everything always: what it loses, the exit code still tells.

    Returns:
        What is wrong with standard output, or None.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free, which is this one
    problem = None if sys.stdout is not None else OUTPUT_CLOSED
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 (the process ends with it)
    if sys.stdout is None or sys.stdout is sys.__stdout__:
        sys.stdout = _writing(_Output(1, "w", closefd=False), sys.stdout, JSON_ESCAPES)
    if sys.stderr is None or sys.stderr is sys.__stderr__:
        sys.stderr = _writing(_Errors(2, "w", closefd=False), sys.stderr, "backslashreplace", line_buffering=True)
    return problem


def _writing(raw: io.FileIO, like: TextIO | None, errors: str, line_buffering: bool = False) -> TextIO:
    if like is not None:
        like.flush()
    encoding = "utf-8" if like is None else like.encoding
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, errors, line_buffering=line_buffering or raw.isatty())


class _Output(io.FileIO):
    """Standard output, which fails once."""

    failed = False

    def write(self, data: Any, /) -> int:
        if self.failed:
            return len(data)
        try:
            return super().write(data)
        except OSError as error:
            self.failed = True
            raise OSError(error.errno, error.strerror, "standard output") from error


class _Errors(io.FileIO):
    """Standard error, which never fails."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def _as_json(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    pairs = zip(units[::2], units[1::2], strict=True)
    return "".join(f"\\u{high << 8 | low:04x}" for high, low in pairs), error.end


codecs.register_error(JSON_ESCAPES, _as_json)
