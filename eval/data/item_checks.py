"""Checks of single items of data, and the plain form in which they are kept."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from eval.data.rows import Row
from eval.errors import did_you_mean

FIELDS = {
    "classification": ("text", "text_a", "text_b", "label"),
    "regression": ("text", "text_a", "text_b", "label"),
    "tagging": ("tokens", "tags"),
    "qa": ("id", "question", "context", "answers"),
    "masked-lm": ("text",),
    "embedding": ("text", "text_a", "text_b", "label"),
    "multiple-choice": ("text", "choices", "label"),
}
"""Fields that are kept, by kind; others are dropped."""
TRUTH = {
    "classification": "label",
    "regression": "label",
    "tagging": "tags",
    "qa": "answers",
    "embedding": "label",
    "multiple-choice": "label",
}
"""The field that holds the truth, by kind."""
ONE_FORM = ("classification", "regression", "embedding")
"""Kinds whose examples are all single texts, or all pairs."""
LEAST = {"tokens": 1, "choices": 2}
"""Fields that hold a list of texts, with the least of its length."""
SHOWN_LABELS = 10
"""Allowed labels that a message names."""


MOST_HINTS = 100
"""Unknown labels for which the nearest allowed one is looked for."""


class BadItemError(Exception):
    """An item that cannot be used; the message says why, without its place."""


class Checker:
    """Turns rows into examples of one task.

    Args:
        kind: Task kind.
        columns: The file's column for each of our fields, where they differ.
        label_map: New name of each label in the files, or its number where a number is asked for; others stay.

    Attributes:
        pair: Whether texts come in pairs, as in the first good item; None before it. For embedding only items with a
            label count.
    """

    def __init__(self, kind: str, columns: Mapping[str, str], label_map: Mapping[str, str]) -> None:
        self.kind = kind
        self.columns = columns
        self.label_map = label_map
        self._labels: Sequence[str] | None = None
        self._known: frozenset[str] = frozenset()
        self._hints = 0
        self.pair: bool | None = None

    @property
    def labels(self) -> Sequence[str] | None:
        """Labels that are allowed; None allows all."""
        return self._labels

    @labels.setter
    def labels(self, labels: Sequence[str] | None) -> None:
        self._labels, self._known = labels, frozenset(labels or ())

    def has_truth(self, row: Row) -> bool:
        """Whether a row holds the truth, whatever its form."""
        truth = TRUTH.get(self.kind)
        return truth is not None and self._given(row, truth) is not None

    def _given(self, row: Row, name: str) -> Any:
        """Return what a row holds in a field; an empty cell of a text table holds no truth."""
        value = row.values.get(self.columns.get(name, name))
        empty = row.written and name == TRUTH.get(self.kind) and isinstance(value, str) and not value.strip()
        return None if empty else value

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
        found = {name: self._given(row, name) for name in FIELDS[self.kind]}
        values = {name: value for name, value in found.items() if value is not None}
        if row.written:
            values = {name: _parsed(self._answered_as(values), name, value) for name, value in values.items()}
        truth = TRUTH.get(self.kind)
        fields = [*self._inputs(values), *([truth] if labelled and truth else [])]
        for name in fields:
            if name not in values:
                raise BadItemError(self._missing(name, row))
        example: dict[str, Any] = {}
        for name in fields:
            example[name] = self._truth(values[name], example) if name == truth else _input(name, values[name])
        self._same_form(example)
        return example

    def _inputs(self, values: Mapping[str, Any]) -> tuple[str, ...]:
        if self.kind == "tagging":
            return ("tokens",)
        if self.kind == "qa":
            return ("id", "question", "context")
        if self.kind == "multiple-choice":
            return ("text", "choices")
        pair = self.kind != "masked-lm" and ("text_a" in values or "text_b" in values)
        return ("text_a", "text_b") if pair else ("text",)

    def _missing(self, name: str, row: Row) -> str:
        column = self.columns.get(name, name)
        there = ", ".join(map(repr, list(row.values)[:SHOWN_LABELS])) or "no fields"
        if column in row.values:
            return f"the field {column!r} is empty"
        return f"the field {column!r} is missing; there are {there}; name its column with columns: {{{name}: ...}}"

    def _same_form(self, example: Mapping[str, Any]) -> None:
        if self.kind not in ONE_FORM or (self.kind == "embedding" and "label" not in example):
            return
        pair = "text_a" in example
        if self.pair is None:
            self.pair = pair
        elif self.pair != pair:
            forms = ("a single text", "a pair of texts")
            raise BadItemError(f"has {forms[pair]}, but the items before it have {forms[not pair]}; use one form")

    def _truth(self, value: Any, example: Mapping[str, Any]) -> Any:
        kind = self._answered_as(example)
        if kind == "regression":
            return _score(self._numbered(value))
        if kind == "classification":
            return self._label(value)
        if kind == "qa":
            return _answers(value, example["context"])
        if kind == "multiple-choice":
            return _place(value, len(example["choices"]))
        if not isinstance(value, list):
            raise BadItemError(f"'tags' must be a list of strings, not {_shown(value)}")
        tags = [self._label(tag) for tag in value]
        if len(tags) != len(example["tokens"]):
            raise BadItemError(f"has {len(example['tokens'])} tokens but {len(tags)} tags; give one tag a token")
        return tags

    def _answered_as(self, values: Mapping[str, Any]) -> str:
        """Return the kind whose truths these are: what is known of vectors is a number a pair, or a class a text."""
        if self.kind != "embedding":
            return self.kind
        return "regression" if "text_a" in values else "classification"

    def _numbered(self, value: Any) -> Any:
        """Return the number that a label's name stands for; the value itself if ``label_map`` does not name it."""
        given = self.label_map.get(value) if isinstance(value, str) else None
        if given is None:
            return value
        try:
            return float(given)
        except ValueError:
            raise BadItemError(f"label_map gives {value!r} the name {given!r}, which must be a number") from None

    def _label(self, value: Any) -> str:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise BadItemError(f"a label must be a string or a whole number, not {_shown(value)}")
        name = _text("label", str(value))
        name = self.label_map.get(name, name)
        if not name.strip():
            raise BadItemError("a label must not be empty")
        if self.labels is not None and name not in self._known:
            self._hints += 1
            hint = _allowed(name, self.labels) if self._hints <= MOST_HINTS else ""
            raise BadItemError(f"unknown label {_shown(name)}{hint}")
        return name


def _allowed(name: str, labels: Sequence[str]) -> str:
    near = did_you_mean(name, labels)
    if near.startswith("; did") or len(labels) <= SHOWN_LABELS:
        return near
    return f"; allowed: {', '.join(labels[:SHOWN_LABELS])} and {len(labels) - SHOWN_LABELS} more"


def _parsed(kind: str, name: str, value: str) -> Any:
    """Return the value of a cell of a text table: words split at white space, scores as numbers."""
    if name in ("tokens", "tags"):
        return value.split()
    if (kind, name) == ("regression", "label") and "_" not in value:  # which float() would take
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _input(name: str, value: Any) -> Any:
    if name == "id" and isinstance(value, int):
        return str(value)
    if name not in LEAST:
        return _text(name, value)
    if not isinstance(value, list) or len(value) < LEAST[name]:
        few = "one string" if LEAST[name] == 1 else "two strings"
        raise BadItemError(f"{name!r} must be a list of {few} or more, not {_shown(value)}")
    return [_text(name, part) for part in value]


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise BadItemError(f"{name!r} must hold text, not {_shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadItemError(f"{name!r} holds half of a surrogate pair, which no UTF-8 text can hold") from None
    return value


def _score(value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) or not isinstance(value, (int, float)) else float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise BadItemError(f"'label' must be a finite number, not {_shown(value)}")
    return number


def _place(value: Any, choices: int) -> int:
    """Return the place of the right choice from 0; a letter from A counts as its place in the alphabet."""
    if isinstance(value, str):
        letter = len(value) == 1 and "A" <= value <= "Z"
        value = ord(value) - ord("A") if letter else int(value) if _short_number(value) else value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < choices:
        raise BadItemError(
            f"'label' must be the place of one of the {choices} choices, 0 to {choices - 1} or a letter from A, "
            f"not {_shown(value)}"
        )
    return value


def _short_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


def _answers(value: Any, context: str) -> list[dict[str, Any]]:
    """Return answers as a list of text and place; the datasets library's form (two parallel lists) is understood."""
    if isinstance(value, dict) and isinstance(value.get("text"), list) and isinstance(value.get("answer_start"), list):
        if len(value["text"]) != len(value["answer_start"]):
            raise BadItemError("'answers' has texts and starts of different number")
        value = [{"text": t, "answer_start": s} for t, s in zip(value["text"], value["answer_start"], strict=True)]
    if not isinstance(value, list) or not all(isinstance(answer, dict) for answer in value):
        raise BadItemError(f"'answers' must be a list of {{text, answer_start}}, not {_shown(value)}")
    if not value:
        raise BadItemError("has no answer; questions without one are not supported, skip them with on_bad: skip")
    answers = []
    for answer in value:
        text, start = answer.get("text"), answer.get("answer_start")
        if not isinstance(text, str) or isinstance(start, bool) or not isinstance(start, int) or not text:
            raise BadItemError(f"an answer must have a text and a whole number answer_start, not {_shown(answer)}")
        there = context[start : start + len(text)] if start >= 0 else ""
        if there != text:
            raise BadItemError(f"the answer {_shown(text)} does not stand at answer_start {start}; there is {there!r}")
        answers.append({"text": text, "answer_start": start})
    return answers


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except RecursionError:
        return "a value that is nested too deeply"
    return text if len(text) <= 60 else text[:57] + "..."
