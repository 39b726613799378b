"""What is kept of every example, and the files with one of them a line: ``predictions.jsonl``, ``perturbed.jsonl``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.errors import UserError
from eval.files.json_text import parse_json
from eval.files.writing import atomic_write

PREDICTIONS_FILE = "predictions.jsonl"
PERTURBED_FILE = "perturbed.jsonl"


@dataclass(frozen=True)
class Kept:
    """Answers, truths and scores by example, so that any two results can be paired later.

    Attributes:
        answers: The model's answers.
        gold: The fields of the example that hold the truth.
        values: Per-example scores.
        logits: Raw outputs, or None when there were too many to keep.
        groups: The group of each example, such as its document; None if no example has one.
    """

    answers: list[dict[str, Any]]
    gold: list[dict[str, Any]]
    values: list[float]
    logits: list[Any] | None = None
    groups: list[str | None] | None = None

    def save(self, folder: Path) -> str:
        """Write ``predictions.jsonl``, one example a line, and return its SHA-256."""
        rows: list[dict[str, Any]] = []
        for place, (answer, gold, value) in enumerate(zip(self.answers, self.gold, self.values, strict=True)):
            row = {"answer": answer, "gold": gold, "value": value}
            if self.groups is not None and self.groups[place] is not None:
                row["group"] = self.groups[place]
            rows.append(row if self.logits is None else {**row, "logits": self.logits[place]})
        return write_rows(folder / PREDICTIONS_FILE, rows)

    @classmethod
    def load(cls, folder: Path, digest: str) -> Kept:
        """Read what ``save`` wrote.

        Raises:
            UserError: The file is missing or has another SHA-256.
        """
        rows = read_rows(folder / PREDICTIONS_FILE, digest)
        logits = [row["logits"] for row in rows] if rows and "logits" in rows[0] else None
        groups = [row.get("group") for row in rows]
        return cls(
            [row["answer"] for row in rows],
            [row["gold"] for row in rows],
            [row["value"] for row in rows],
            logits,
            groups if any(group is not None for group in groups) else None,
        )


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    """Write a file with one JSON object a line, and return its SHA-256."""
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    # A lone surrogate becomes its JSON escape.
    data = text.encode("utf-8", "backslashreplace")
    atomic_write(path, data)
    return hashlib.sha256(data).hexdigest()


def read_rows(path: Path, digest: str) -> list[dict[str, Any]]:
    """Read what ``write_rows`` wrote.

    Raises:
        UserError: The file is missing or has another SHA-256.
    """
    data = path.read_bytes() if path.is_file() else b""
    if hashlib.sha256(data).hexdigest() != digest:
        raise UserError(f"{path}: does not belong to the result beside it; measure again")
    return [parse_json(line) for line in data.decode().split("\n") if line]
