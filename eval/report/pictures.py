"""Plots as pictures inside a page, light and dark."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from eval.report.plots import darkened, render


@dataclass(frozen=True)
class Picture:
    """What the macro ``figure`` of ``page_parts.html.j2`` shows.

    Attributes:
        light: Address of the image for light pages, with the image in it.
        dark: The same for dark pages.
        caption: Text below it, and in its place where there are no images.
    """

    light: Markup
    dark: Markup
    caption: str


def picture(draw: Callable[..., Any], caption: str) -> Picture:
    """Draw a figure (see ``eval.report.plots.render``) for both themes."""
    light = render(draw)
    return Picture(_data_uri(light), _data_uri(darkened(light)), caption)


def _data_uri(svg: bytes) -> Markup:
    """Return an SVG image as the address of an ``img``; scripts and links inside such an image are dead."""
    return Markup("data:image/svg+xml;base64," + base64.b64encode(svg).decode())
