"""Predictions that came from anywhere (a large language model, an API, annotators), read from a file of rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from eval.data.item_checks import Checker
from eval.data.readers import read
from eval.errors import UserError, few
from eval.example_digests import input_digest
from eval.examples import Array, Example
from eval.files.json_text import JsonError, parse_json
from eval.files.paths import user_path
from eval.files.rows import Row
from eval.kinds.kind import Kind
from eval.kinds.kind_registry import all_kinds, kind_of
from eval.kinds.values import BadItemError, LabelReader, shown
from eval.task import TaskSpec

TOLERANCE = 0.02
"""By how much the sum of the probabilities of a prediction may differ from 1; they are then scaled to it."""
LEAST = 1e-3
"""Probability that is left, all together, for labels whose own is 0: a logit must be a finite number."""
SHOWN = 20
"""Bad rows that one message lists."""
FIELDS = ("probabilities", "votes", "label", "labels", "tags", "score")
"""Fields that may hold a prediction."""

NUMBERS_AND_LISTS = tuple("[{-0123456789")
"""How a cell begins that holds one."""

PredictionSource = str | Path | Sequence[Mapping[str, Any]]
"""A file, or its rows in memory."""


def teaches(kind: Kind) -> bool:
    """Return whether predictions of a kind can be given in a file: labels, tags or a number."""
    return kind.one_label or kind.independent or kind.words or kind.number


def read_predictions(
    source: PredictionSource,
    spec: TaskSpec,
    *,
    columns: Mapping[str, str] | None = None,
    label_map: Mapping[str, str] | None = None,
    tolerance: float = TOLERANCE,
) -> tuple[dict[str, Array], dict[str, str]]:
    """Read predictions, each with the input that it answers.

    Several rows of one input, such as those of several annotators, count as one: the mean of their probabilities, or
    of their scores.

    Args:
        source: A file of any format that data has, or its rows.
        spec: What is asked; a prediction may name no other labels.
        columns: The column of an input field, where it has a name of its own.
        label_map: New name of each label in the file.
        tolerance: By how much a sum of probabilities may differ from 1.

    Returns:
        Logits by the digest of the input (``eval.example_digests.input_digest``), and where each stands.

    Raises:
        UserError: The file cannot be read, or with every row that is no prediction of this task.
    """
    kind = kind_of(spec.kind)
    if not teaches(kind):
        known = ", ".join(each.name for each in all_kinds() if teaches(each))
        raise UserError(f"predictions: a file cannot teach {kind.name}; it can teach {known}; name a model as teacher")
    name = str(source) if isinstance(source, str | Path) else "predictions"
    checker, reader = Checker(spec.kind, {}, {}), PredictionReader(spec, label_map or {}, tolerance)
    sums: dict[str, Array] = {}
    counts: Counter[str] = Counter()
    places: dict[str, str] = {}
    bad: list[str] = []
    for row in _matched(_rows(source), checker, columns or {}):
        try:
            example = checker.check(row, labelled=False)
            found = reader.read(row, example)
        except BadItemError as error:
            bad.append(f"{row.where}: {error}")
            continue
        key = input_digest(example, kind.gold)
        sums[key] = sums[key] + found if key in sums else found
        counts[key] += 1
        places.setdefault(key, f"{row.where} ({shown(next(iter(example.values())))})")
    if bad:
        raise UserError(*few(bad, SHOWN, "bad row"))
    if not sums:
        raise UserError(f"{name}: is empty; there is nothing to learn from")
    if kind.pairs and bool(checker.pair) != spec.pair:
        forms = ("single texts", "pairs (text_a and text_b)")
        raise UserError(f"{name}: holds {forms[not spec.pair]}, but the examples of the task are {forms[spec.pair]}")
    return {key: as_logits(kind, total / counts[key]) for key, total in sums.items()}, places


def as_logits(kind: Kind, given: Array) -> Array:
    """Return logits whose probabilities are those that were given; scores stay as they are.

    Labels that have none share ``LEAST``. The logits of a choice among labels have a mean of 0, so that their squared
    differences can be learned as those of a network.

    Args:
        kind: The kind of task.
        given: Probabilities ``[C]`` or ``[words, C]``, or a score ``[1]``.

    Examples:
        >>> import numpy as np
        >>> from eval.kinds.kind_registry import kind_of
        >>> logits = as_logits(kind_of("classification"), np.array([0.8, 0.2]))
        >>> [round(float(p), 4) for p in np.exp(logits) / np.exp(logits).sum()]
        [0.8, 0.2]
    """
    if kind.number:
        return np.asarray(given, dtype=np.float32)
    if kind.independent:
        chances = np.clip(given, LEAST / 2, 1 - LEAST / 2)
        return np.asarray(np.log(chances) - np.log1p(-chances), dtype=np.float32)
    logs = np.log(np.maximum(given, LEAST / given.shape[-1]))
    return np.asarray(logs - logs.mean(axis=-1, keepdims=True), dtype=np.float32)


class PredictionReader:
    """Reads what a row predicts.

    Args:
        spec: What is asked.
        label_map: New name of each label.
        tolerance: By how much a sum of probabilities may differ from 1.
    """

    def __init__(self, spec: TaskSpec, label_map: Mapping[str, str], tolerance: float) -> None:
        self.kind, self.labels, self.tolerance = kind_of(spec.kind), spec.labels, tolerance
        self.places = {label: place for place, label in enumerate(spec.labels)}
        self.reader = LabelReader(label_map)
        self.reader.allowed = spec.labels or None

    def read(self, row: Row, example: Example) -> Array:
        """Return probabilities ``[C]`` or ``[words, C]``, or a score ``[1]``.

        Raises:
            BadItemError: The row predicts nothing, or nothing that this task asks.
        """
        values = {name: _parsed(value) for name, value in row.values.items()} if row.written else dict(row.values)
        values = {name: value for name, value in values.items() if value is not None and value != ""}
        if self.labels and all(label in values for label in self.labels):
            values.setdefault("probabilities", {label: values[label] for label in self.labels})
        if self.kind.number:
            value = self._first(values, ("score", "label"))[1]
            return np.array([self.reader.score(value)])
        if self.kind.words:
            return self._of_words(values, len(example["tokens"]))
        if self.kind.independent:
            name, value = self._first(values, ("probabilities", "labels"))
            if name == "labels":
                names = self.kind.read_truth(value, example, self.reader)
                return np.array([float(label in names) for label in self.labels])
            return self._chances(value)
        name, value = self._first(values, ("probabilities", "votes", "label"))
        return self._read_as[name](self, value)

    def _first(self, values: Mapping[str, Any], names: Sequence[str]) -> tuple[str, Any]:
        name = next((name for name in names if name in values), None)
        if name is None:
            there = ", ".join(map(repr, list(values)[:SHOWN])) or "no fields"
            raise BadItemError(f"predicts nothing: needs {' or '.join(map(repr, names))}; there are {there}")
        return name, values[name]

    def _of_words(self, values: Mapping[str, Any], words: int) -> Array:
        name, value = self._first(values, ("probabilities", "votes", "tags"))
        value = value.split() if isinstance(value, str) else value
        if not isinstance(value, list) or len(value) != words:
            held = f"{len(value)} of them" if isinstance(value, list) else shown(value)
            raise BadItemError(f"{name!r} must be a list with one item a token, {words} in all, not {held}")
        return np.stack([self._read_as[name](self, one) for one in value])

    def _hard(self, value: Any) -> Array:
        found = np.zeros(len(self.labels))
        found[self.places[self.reader.label(value)]] = 1.0
        return found

    def _probabilities(self, value: Any) -> Array:
        found = self._amounts("probabilities", value)
        if abs(found.sum() - 1) > self.tolerance:
            raise BadItemError(f"'probabilities' have a sum of {found.sum():.4g}; it must be 1 ± {self.tolerance:g}")
        return np.asarray(found / found.sum())

    def _votes(self, value: Any) -> Array:
        found = sum(map(self._hard, value)) if isinstance(value, list) and value else self._amounts("votes", value)
        if not np.sum(found):
            raise BadItemError("'votes' count 0 together; leave the row out")
        return np.asarray(found / np.sum(found))

    def _chances(self, value: Any) -> Array:
        found = self._amounts("probabilities", value)
        if found.max(initial=0) > 1:
            raise BadItemError(f"'probabilities' must be from 0 to 1, of each label by itself, not {found.max():g}")
        return found

    def _amounts(self, name: str, value: Any) -> Array:
        """Return the amount of each label, 0 where none is given."""
        if isinstance(value, list) and len(value) == len(self.labels):
            value = dict(zip(self.labels, value, strict=True))
            label: Callable[[Any], str] = str
        else:
            label = self.reader.label
        if not isinstance(value, Mapping):
            order = ", ".join(self.labels[:SHOWN])
            raise BadItemError(
                f"{name!r} must give a number for each label by its name, or a list of {len(self.labels)} in the order "
                f"of the labels ({order}), not {shown(value)}"
            )
        found = np.zeros(len(self.labels))
        for key, amount in value.items():
            given = _parsed(amount)
            if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < math.inf:
                raise BadItemError(
                    f"{name!r}: {shown(key)} must have a finite number of 0 or more, not {shown(amount)}"
                )
            found[self.places[label(key)]] += given
        return found

    _read_as: Mapping[str, Callable[[PredictionReader, Any], Array]] = {
        "probabilities": _probabilities,
        "votes": _votes,
        "label": _hard,
        "tags": _hard,
    }


def _rows(source: PredictionSource) -> Iterable[Row]:
    if not isinstance(source, str | Path):
        return (Row(f"predictions: row {number}", row) for number, row in enumerate(source, start=1))
    path = user_path(source)
    if not path.is_file():
        raise UserError(f"predictions: there is no file {source}")
    return read(path)


def _matched(rows: Iterable[Row], checker: Checker, columns: Mapping[str, str]) -> Iterator[Row]:
    """Yield the rows, after the columns of the first good one were found."""
    rows, head = iter(rows), []
    for row in rows:
        head.append(row)
        if not row.problem:
            named = {field: name for field, name in columns.items() if name in row.values and field not in row.values}
            checker.named = {field: name for field, name in named.items() if field not in FIELDS}
            checker.match(row.values, labelled=False, alone=False)
            break
    yield from chain(head, rows)


def _parsed(value: Any) -> Any:
    """Return what a cell of a text table holds, where it is a number, a list or a mapping as JSON writes it."""
    if not isinstance(value, str):
        return value
    try:
        return parse_json(value) if value.strip()[:1] in NUMBERS_AND_LISTS else value
    except JsonError:
        return value
