"""Checks of single items of data, and the plain form in which they are kept."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from eval.errors import did_you_mean
from eval.readers import Row

FIELDS = {
    "classification": ("text", "text_a", "text_b", "label"),
    "regression": ("text", "text_a", "text_b", "label"),
    "tagging": ("tokens", "tags"),
    "qa": ("id", "question", "context", "answers"),
    "masked-lm": ("text",),
}
"""Fields that are kept, by kind; others are dropped."""
TRUTH = {"classification": "label", "regression": "label", "tagging": "tags", "qa": "answers"}
"""The field that holds the truth, by kind."""
SHOWN_LABELS = 10
"""Allowed labels that a message names."""


class BadItemError(Exception):
    """An item that cannot be used; the message says why, without its place."""


class Checker:
    """Turns rows into examples of one task.

    Args:
        kind: Task kind.
        columns: The file's column for each of our fields, where they differ.
        label_map: New name of each label in the files; others stay.

    Attributes:
        labels: Labels that are allowed; None allows all.
        pair: Whether texts come in pairs, as in the first good item; None before it.
    """

    def __init__(self, kind: str, columns: Mapping[str, str], label_map: Mapping[str, str]) -> None:
        self.kind = kind
        self.columns = columns
        self.label_map = label_map
        self.labels: Sequence[str] | None = None
        self.pair: bool | None = None

    def has_truth(self, row: Row) -> bool:
        """Whether a row holds the truth, whatever its form."""
        truth = TRUTH.get(self.kind)
        return truth is not None and row.values.get(self.columns.get(truth, truth)) is not None

    def check(self, row: Row, labelled: bool) -> dict[str, Any]:
        """Return the example that a row holds.

        Args:
            row: A row that was read.
            labelled: Whether the truth must be there; if not, it is dropped.

        Raises:
            BadItemError: The row is not an example of this task.
        """
        if row.problem:
            raise BadItemError(row.problem)
        named = {field: row.values.get(self.columns.get(field, field)) for field in FIELDS[self.kind]}
        values = {field: value for field, value in named.items() if value is not None}
        if row.written:
            values = self._parsed(values)
        example = getattr(self, f"_{self.kind.replace('-', '_')}_inputs")(values, row)
        truth = TRUTH.get(self.kind)
        if labelled and truth is not None:
            if truth not in values:
                raise BadItemError(self._missing(truth, row))
            example[truth] = getattr(self, f"_{truth}")(values[truth], example)
        if self.kind in ("classification", "regression"):
            self._same_form(example)
        return dict(example)
