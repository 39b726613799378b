"""The sentence of a certificate in what tells about a model: its card, and the page of its run."""

from __future__ import annotations

import re
from pathlib import Path

from markupsafe import escape as escape_html

from eval.files.writing import atomic_write
from eval.report.markdown import escape

QUOTED_IN_CARD = re.compile(r"^> .*Check it with `compress recheck`\.\n\n", re.MULTILINE)
QUOTED_IN_PAGE = re.compile(r'<p class="lead" id="certificate">.*?</p>\n?', re.DOTALL)


def quote_in_card(card: Path, sentence: str) -> None:
    """Write the sentence under the title of a ``README.md``, in the place of an earlier one; without a card, nothing.

    Args:
        card: The file.
        sentence: What the certificate says, without a full stop at its end.
    """
    if card.is_file():
        text = QUOTED_IN_CARD.sub("", card.read_text(encoding="utf-8"))
        quoted = f"> {escape(sentence)}. Check it with `compress recheck`.\n\n"
        with_it = re.sub(r"^# .*\n\n?", lambda title: f"{title[0].rstrip()}\n\n{quoted}", text, count=1, flags=re.M)
        atomic_write(card, with_it.encode())


def quote_in_page(page: Path, sentence: str) -> None:
    """Write the sentence under the title of a page of ours, in the place of an earlier one; without a page, nothing."""
    if page.is_file():
        text = QUOTED_IN_PAGE.sub("", page.read_text(encoding="utf-8"))
        quoted = f'</header>\n<p class="lead" id="certificate">{escape_html(sentence)}.</p>\n'
        atomic_write(page, text.replace("</header>\n", quoted, 1).encode())
