"""Markdown that shows text from data as it is: it can become no markup, no address and no mention."""

from __future__ import annotations

import re
from collections.abc import Sequence

from eval.report.plain_text import plain

MOST_LABELS = 50
RISKY = re.compile(
    r"""[^\w\s.,%()\-+/'\u0080-\U0010ffff]  # whatever may begin markup, an address or a mention
    | (?<![A-Za-z0-9])_ | _(?![A-Za-z0-9])  # underscores that could mean emphasis
    | ^[-+] | (?<=^\d)\.  # the start of a list
    | (?<=[wW]{3})\.  # an address without http""",
    re.VERBOSE,
)
"""Characters that are written as numeric entities, which are never markup."""


def escape(text: object, longest: int = 300) -> str:
    """Return text from data as one line of markdown that shows exactly that text, in a table too."""
    return RISKY.sub(lambda found: f"&#{ord(found[0])};", plain(text, longest)).strip()


def labels_line(labels: Sequence[str]) -> str:
    """Return a line that lists labels, the first of very many; nothing if there are none."""
    if not labels:
        return ""
    shown = ", ".join(escape(label, 80) for label in labels[:MOST_LABELS])
    more = len(labels) - MOST_LABELS
    return f"Labels ({len(labels)}): {shown}" + (f", and {more} more." if more > 0 else ".")
