"""Predictions that came from anywhere as the teacher of a recipe: ``teacher: {predictions: FILE}``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from compress.reading.base_block import Block
from teachers.signals.predictions_file import TOLERANCE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from eval.data.loading import Task
    from eval.task import Example
    from teachers.signals.predictions_teacher import PredictionsTeacher


class PredictionsBlock(Block):
    """A file of predictions; written as its name alone, or with what is asked of it.

    Attributes:
        file: One row an input, of any format that data has: its text, texts or tokens as in the data, and
            ``probabilities``, ``votes``, ``label``, ``labels``, ``tags`` or ``score`` (docs/data.md).
        missing: Whether training examples without a prediction refuse the run or are left out.
        unmatched: Whether predictions that match no example refuse the run or are left out.
        tolerance: By how much the probabilities of one prediction may differ from a sum of 1.
    """

    file: str
    missing: Literal["refuse", "drop"] = "refuse"
    unmatched: Literal["refuse", "ignore"] = "refuse"
    tolerance: float = Field(default=TOLERANCE, ge=0, lt=1)

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, given: Any) -> Any:
        return {"file": given} if isinstance(given, str) else given

    def teacher(
        self, task: Task, more: Iterable[Example], columns: Mapping[str, str], label_map: Mapping[str, str]
    ) -> PredictionsTeacher:
        """Read the file.

        Args:
            task: The task with its examples.
            more: Further examples that may be answered.
            columns: The columns of the task.
            label_map: New name of each label.

        Raises:
            UserError: With every reason why these are no predictions for this data.
        """
        from teachers.signals.predictions_teacher import PredictionsTeacher

        asked: dict[str, Any] = {"missing": self.missing, "unmatched": self.unmatched, "tolerance": self.tolerance}
        named: dict[str, Any] = {"columns": columns, "label_map": label_map, "more": more}
        return PredictionsTeacher.read_from(self.file, task, **asked, **named)
