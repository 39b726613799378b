"""What a check found: a word for each level, the word for all of it, and the exit code of that word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Word(StrEnum):
    """What is said of a certificate, from the best to the worst."""

    UNSIGNED = "UNSIGNED"
    VALID = "VALID"
    PARTIAL = "PARTIAL"
    NOT_COMPARABLE = "NOT COMPARABLE"
    NOT_REPRODUCED = "NOT REPRODUCED"
    OTHER_DATA = "OTHER DATA"
    OTHER_MODEL = "OTHER MODEL"
    BAD_SIGNATURE = "BAD SIGNATURE"
    INVALID = "INVALID"


EXIT_CODES = {
    Word.UNSIGNED: 0,
    Word.VALID: 0,
    Word.PARTIAL: 3,
    Word.NOT_COMPARABLE: 4,
    Word.NOT_REPRODUCED: 5,
    Word.OTHER_DATA: 6,
    Word.OTHER_MODEL: 7,
    Word.BAD_SIGNATURE: 8,
    Word.INVALID: 9,
}
"""Exit codes of ``compress recheck``: up to 4 nothing contradicts the certificate, from 5 on something does."""
LEVELS = {0: "signature", 1: "statistics", 2: "files and data", 3: "predictions", 4: "cost"}
"""What each level checks."""
MOST_SENTENCES = 20
"""Sentences of a finding that are printed."""


@dataclass(frozen=True)
class Finding:
    """What one level found.

    Attributes:
        level: 0 (the signature) to 4.
        word: What it comes to.
        sentences: What was found, or why nothing was.
    """

    level: int
    word: Word
    sentences: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """What all levels found.

    Attributes:
        findings: By level.
        sentence: What the certificate says (see ``eval.certificate.certified_sentence``); empty if it cannot be read.
    """

    findings: tuple[Finding, ...]
    sentence: str = ""

    @property
    def word(self) -> Word:
        """The worst word of all levels; whoever asks for no signature finds an unsigned certificate valid."""
        return max((Word.VALID, *(finding.word for finding in self.findings)), key=list(Word).index)

    @property
    def exit_code(self) -> int:
        """The exit code of the word."""
        return EXIT_CODES[self.word]

    @property
    def reason(self) -> str:
        """The first sentence behind the word; empty where all is well."""
        return next((each.sentences[0] for each in self.findings if each.word is self.word and each.sentences), "")

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON values."""
        found = [asdict(finding) | {"checks": LEVELS[finding.level]} for finding in self.findings]
        return {"word": self.word, "exit_code": self.exit_code, "sentence": self.sentence, "levels": found}

    def __str__(self) -> str:
        stands = self.exit_code <= EXIT_CODES[Word.NOT_COMPARABLE]
        said = self.sentence and f"{': ' if stands else ', though it says: '}{self.sentence}"
        rows = [f"{self.word}{said}"]
        for finding in self.findings:
            place = f"level {finding.level}, " if finding.level else ""
            rows.append(f"{place}{LEVELS[finding.level]}: {finding.word}")
            rows += [f"  {sentence}" for sentence in _first(finding.sentences)]
        return "\n".join(rows)


def _first(sentences: Sequence[str]) -> list[str]:
    more = len(sentences) - MOST_SENTENCES
    return [*sentences[:MOST_SENTENCES], *([f"and {more:,} more"] if more > 0 else [])]
