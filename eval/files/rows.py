"""What a reader yields: rows with the place they stand at, and the lines of text files that they come from."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eval.errors import UserError
from eval.files.unpacked import open_unpacked


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


def text_lines(path: Path) -> Iterator[tuple[str, str | None]]:
    """Yield (place, text without its line break), with None for a line that is not UTF-8.

    Raises:
        UserError: The file begins as UTF-16 does, of which no line could be read.
    """
    with open_unpacked(path) as file:
        for number, line in enumerate(file, start=1):
            if number == 1 and line.startswith(UTF16):
                raise UserError(f'{path}: is UTF-16, as spreadsheets save "Unicode text"; save the file as UTF-8')
            data = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            try:
                text = data.decode("utf-8")
            except UnicodeDecodeError:
                yield f"{path}:{number}", None
            else:
                yield f"{path}:{number}", text.removesuffix("\n").removesuffix("\r")


def is_windows_1252(path: Path) -> bool:
    """Whether a file that is not UTF-8 can be Windows-1252, in which spreadsheets save tables in many countries."""
    with open_unpacked(path) as file:
        try:
            file.read().decode("cp1252")
        except UnicodeDecodeError:
            return False
    return True


UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
NOT_UTF8 = "is not valid UTF-8; save the file as UTF-8"
