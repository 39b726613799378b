"""HTML that escapes by default: text from data can never become a tag or an attribute."""

from __future__ import annotations

import base64
import html
import re
import unicodedata
from collections.abc import Iterable

LONGEST = 300
"""Characters of one text from data that a report shows."""
VOID = {"meta", "img", "source", "br"}
BIDI = re.compile("[\u202a-\u202e\u2066-\u2069]")
"""Marks that turn the direction of the text after them."""


class Markup(str):
    """Text that is HTML already; only ``element`` makes it."""

    __slots__ = ()


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


def element(tag: str, *children: object, **attributes: object) -> Markup:
    """Return an element; every child and attribute value is escaped unless it is ``Markup``.

    Args:
        tag: Name of the element, from our own code.
        children: Texts, numbers, elements, or lists of them; None is left out.
        attributes: ``class_`` stands for ``class``, underscores for hyphens; None is left out.
    """
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(str(value), quote=True)}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in VOID:
        return Markup(f"<{tag}{written}>")
    return Markup(f"<{tag}{written}>{''.join(_pieces(children))}</{tag}>")


def _pieces(children: Iterable[object]) -> Iterable[str]:
    for child in children:
        if child is None:
            continue
        if isinstance(child, Markup):
            yield child
        elif isinstance(child, str | int | float):
            yield html.escape(plain(child), quote=True)
        elif isinstance(child, Iterable):
            yield from _pieces(child)
        else:
            raise TypeError(f"an element cannot hold {type(child).__name__}")


def data_uri(svg: bytes) -> str:
    """Return an SVG image as the address of an ``img``; scripts and links inside such an image are dead."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode()
