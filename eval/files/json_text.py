"""JSON as others wrote it: whatever is wrong with it is a ``JsonError`` of one sentence.

Like the other parts of ``predict.py`` it imports nothing of the toolkit.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any


class JsonError(ValueError):
    """A text that is not JSON, or too deep, or that says a thing twice; the message says where, without the file."""


def parse_json(text: str) -> Any:
    """Return what a JSON text says.

    Raises:
        JsonError: It says nothing, or nothing clear.
    """
    try:
        return json.loads(text, object_pairs_hook=_members)
    except JsonError:
        raise
    except RecursionError:
        raise JsonError("is not JSON (nested too deeply)") from None
    except json.JSONDecodeError as error:
        raise JsonError(f"is not JSON ({error})") from None
    except ValueError:  # Python's limit for the digits of an integer
        raise JsonError("is not JSON (a number of thousands of digits)") from None


def read_json(file: Path) -> Any:
    """Return what a JSON file says.

    Raises:
        JsonError: As ``parse_json``.
        OSError: The file cannot be read.
    """
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise JsonError("is not UTF-8 text") from None
    return parse_json(text)


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise JsonError(f"gives {twice[:60]!r} twice")
    return members
