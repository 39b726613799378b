"""What the docstring of a technique says: its summary, its text and the meaning of each field."""

from __future__ import annotations

import inspect
import re

SECTION = re.compile(r"^(Attributes|Args):\s*$", re.MULTILINE)
ENTRY = re.compile(r"^ {4}(\w+)(?: \([^)]*\))?: *(.*)$")


def summary_and_text(owner: type) -> tuple[str, str]:
    """Return the first paragraph of a class docstring, and the rest of it without the list of fields."""
    text = inspect.cleandoc(owner.__doc__ or "")
    head, _, tail = _split(text)
    summary, _, rest = head.partition("\n\n")
    body = "\n\n".join(part.strip("\n") for part in (rest, tail) if part.strip())
    return " ".join(summary.split()), body


def attribute_descriptions(owner: type) -> dict[str, str]:
    """Return the meaning of each field from the ``Attributes:`` sections of a class and the classes above it."""
    found: dict[str, str] = {}
    for parent in reversed(owner.__mro__):
        # A class without a docstring of its own says nothing; inspect.getdoc would repeat its parent.
        _, section, _ = _split(inspect.cleandoc(parent.__dict__.get("__doc__") or ""))
        name = ""
        for line in section.splitlines():
            entry = ENTRY.match(line)
            if entry:
                name = entry[1]
                found[name] = entry[2].strip()
            elif name and line.strip():
                found[name] = f"{found[name]} {line.strip()}".strip()
    return found


def _split(text: str) -> tuple[str, str, str]:
    """Return what stands before, in and after the list of fields."""
    start = SECTION.search(text)
    if start is None:
        return text, "", ""
    lines = text[start.end() :].lstrip("\n").splitlines()
    end = next((i for i, line in enumerate(lines) if line and not line.startswith(" ")), len(lines))
    return text[: start.start()].rstrip(), "\n".join(lines[:end]), "\n".join(lines[end:])
