"""The result of a measurement, and the two files that keep it: ``result.json`` and ``predictions.jsonl``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from eval.errors import UserError
from eval.files.writing import atomic_write
from eval.predictions import Kept
from eval.result_values import ResultValues

RESULT_FILE = "result.json"


class Result(ResultValues):
    """All that was measured of one model on one split; printed as a table, and kept in a folder."""

    def __str__(self) -> str:
        from eval.report.console import to_text

        return to_text([self])

    def to_json(self) -> str:
        """Return the text of ``result.json``."""
        return self.model_dump_json(indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str = RESULT_FILE) -> Result:
        """Read what ``to_json`` wrote.

        Raises:
            UserError: It is not a result, or one of another format.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise UserError(*(f"{where}: {_place(part)}: {part['msg']}" for part in error.errors())) from None

    def save(self, folder: str | Path) -> Path:
        """Write ``predictions.jsonl`` (if anything is kept) and ``result.json``, each beside first, then renamed."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        digest = None if self.kept is None else self.kept.save(folder)
        text = self.model_copy(update={"predictions": digest}).to_json()
        atomic_write(folder / RESULT_FILE, text.encode())
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> Result:
        """Read what ``save`` wrote.

        Raises:
            UserError: There is no result in the folder, or its predictions belong to another one.
        """
        path = Path(folder) / RESULT_FILE
        if not path.is_file():
            raise UserError(f"{folder}: no {RESULT_FILE} here; give the folder that Result.save wrote")
        result = cls.from_json(path.read_text(encoding="utf-8"), str(path))
        if result.predictions is None:
            return result
        return result.model_copy(update={"kept": Kept.load(path.parent, result.predictions)})


def _place(problem: Mapping[str, Any]) -> str:
    return ".".join(str(part) for part in problem["loc"]) or "the whole file"
