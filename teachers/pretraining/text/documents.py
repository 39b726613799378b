"""Unlabelled text as documents of sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from eval.data.readers import format_of
from eval.data.sources import Source
from eval.errors import UserError
from eval.files.rows import NOT_UTF8, text_lines

END = re.compile(
    r"(?<=[。！？；…])(?![。！？；…”’」』）])"  # Chinese, where no space follows
    r"|(?<=[。！？；…][”’」』）])"
    r"|(?:(?<=[.!?])|(?<=[.!?][\"'”’)\]]))"
    r"(?<!\b[A-Z]\.)(?<!\b(?:Mr|Ms|Dr|St|Jr|Sr|No|vs)\.)"
    r"(?<!\b(?:Mrs|Rev|Gen|Col|Jan|Feb|Mar|Apr|Aug|Sep|Oct|Nov|Dec)\.)(?<!\bProf\.)"
    r"\s+(?=[\"'“‘(\[]?[A-Z0-9])"
)
"""Where a sentence ends: not after initials (``J. S. Bach``), and not after abbreviations that stand before names."""
LONGEST = 1_000_000
"""Characters of a document; a longer one is read in parts, so that memory stays bounded."""


@dataclass
class Counts:
    """What was read, and what was left out.

    Attributes:
        documents: Documents.
        sentences: Sentences.
        empty: Documents without a sentence.
        cut: Documents longer than ``LONGEST`` characters.
        problems: Lines that could not be read, the first of them by place.
        bad: How many there are.
    """

    documents: int = 0
    sentences: int = 0
    empty: int = 0
    cut: int = 0
    bad: int = 0
    problems: list[str] = field(default_factory=list)

    def refuse(self, where: str, problem: str) -> None:
        """Count a line that could not be read."""
        self.bad += 1
        if len(self.problems) < 5:
            self.problems.append(f"{where}: {problem}")


def split(text: str) -> list[str]:
    """Return the sentences of a paragraph of English or Chinese, without white space around them."""
    return [part.strip() for part in END.split(text) if part and part.strip()]


def documents(sources: Iterable[Source], counts: Counts) -> Iterator[list[str]]:
    """Yield the sentences of each document, in order and in bounded memory.

    Args:
        sources: Files ``.txt`` with one paragraph a line and blank lines between documents, or rows from anywhere, each
            a document with its text in ``text``; of translations ``source`` and ``target``, each a document.
        counts: What was read is counted here.

    Raises:
        UserError: If a file cannot be read, or holds no document at all.
    """
    for source in sources:
        before = counts.documents
        file = source.path
        plain = file is not None and format_of(file) == ".txt"
        paragraphs = _lines(file, counts) if file is not None and plain else _rows(source, counts)
        held: list[str] = []
        size = 0
        for paragraph in paragraphs:
            if paragraph is not None and size <= LONGEST:
                held += split(paragraph)
                size += len(paragraph)
                continue
            counts.cut += paragraph is not None
            yield from _document(held, counts)
            held, size = ([], 0) if paragraph is None else (split(paragraph), len(paragraph))
        if held:
            yield from _document(held, counts)
        if counts.documents == before:
            raise UserError(f"{source.name}: holds no text ({counts.bad:,} lines could not be read)")


def _document(sentences: list[str], counts: Counts) -> Iterator[list[str]]:
    if not sentences:
        counts.empty += 1
        return
    counts.documents += 1
    counts.sentences += len(sentences)
    yield sentences


def _lines(file: Path, counts: Counts) -> Iterator[str | None]:
    """Yield paragraphs, and None where a document ends."""
    inside = False
    for where, line in text_lines(file):
        if line is None:
            counts.refuse(where, NOT_UTF8)
        elif line.strip():
            inside = True
            yield from _parts(line)
        elif inside:
            inside = False
            yield None
    if inside:
        yield None


def _rows(source: Source, counts: Counts) -> Iterator[str | None]:
    for row in source.rows():
        names = ("text",) if "text" in row.values else ("source", "target")
        texts = [text for name in names if isinstance(text := row.values.get(name), str)]
        if not texts:
            counts.refuse(row.where, row.problem or "has no text in 'text'")
        for text in texts:
            for line in text.splitlines():
                if line.strip():
                    yield from _parts(line)
            yield None


def _parts(line: str) -> Iterator[str]:
    """Yield a line, or a very long one in parts that end at white space where there is any."""
    while len(line) > LONGEST:
        place = line.rfind(" ", 1, LONGEST) + 1 or LONGEST
        yield line[:place]
        line = line[place:]
    yield line
