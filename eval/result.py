"""The result of a measurement, and the files that keep it: ``result.json`` beside those with the answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from eval.errors import UserError
from eval.files.writing import atomic_write
from eval.predictions import PERTURBED_FILE, Kept, read_rows, write_rows
from eval.result_values import ResultValues
from eval.stress.stress_rows import Perturbed

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
        """Write the answers that are kept, if any, then ``result.json``, each file beside first, then renamed."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        digest = None if self.kept is None else self.kept.save(folder)
        rows = [asdict(each) for each in self.perturbed]
        under_stress = write_rows(folder / PERTURBED_FILE, rows) if rows else None
        text = self.model_copy(update={"predictions": digest, "perturbed_predictions": under_stress}).to_json()
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
        update: dict[str, Any] = {}
        if result.predictions is not None:
            update["kept"] = Kept.load(path.parent, result.predictions)
        if result.perturbed_predictions is not None:
            rows = read_rows(path.parent / PERTURBED_FILE, result.perturbed_predictions)
            update["perturbed"] = tuple(Perturbed(**row) for row in rows)
        return result.model_copy(update=update)


def _place(problem: Mapping[str, Any]) -> str:
    return ".".join(str(part) for part in problem["loc"]) or "the whole file"
