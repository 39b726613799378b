"""Text from data as one clean line, safe to show in a console, on a page and in a plot."""

from __future__ import annotations

import re
import unicodedata

LONGEST = 300
"""Characters of one text from data that a report shows."""
BIDI = re.compile("[\u202a-\u202e\u2066-\u2069]")
"""Marks that turn the direction of the text after them."""


def plain(text: object, longest: int = LONGEST) -> str:
    """Return text that is safe to show anywhere: one line, no control characters, no lone surrogates, not too long."""
    characters = []
    for character in BIDI.sub("", str(text)[: longest + 1]):
        category = unicodedata.category(character)
        characters.append(
            " " if category in ("Cc", "Zl", "Zp") else "\ufffd" if category in ("Cs", "Cn") else character
        )
    cleaned = "".join(characters)
    return cleaned if len(cleaned) <= longest else cleaned[: longest - 1] + "\u2026"
