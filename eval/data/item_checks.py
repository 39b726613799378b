"""Checks of single items of data, and the plain form in which they are kept."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from eval.data.columns import column_options, left_over, matched_columns, usual_column
from eval.files.rows import Row
from eval.kinds.kind_registry import kind_of
from eval.kinds.values import SHOWN_LABELS, LabelReader, plain_text, shown
from eval.kinds.values import BadItemError as BadItemError

logger = logging.getLogger(__name__)


class Checker:
    """Turns rows into examples of one task.

    Args:
        kind: Task kind.
        columns: The file's column for each of our fields, where they differ.
        label_map: New name of each label in the files, or its number where a number is asked for; others stay.

    Attributes:
        kind: The kind.
        named: ``columns`` as it was given.
        columns: The same with those that ``match`` found for the file that is being read.
        found: All that it found in any file.
        spread: Columns that hold the truth together in the file that is being read, one for each label.
        left_over: Columns of that file that hold nothing which is read.
        pair: Whether texts come in pairs, as in the first good item; None before it. For embedding only items with a
            label count.
    """

    def __init__(self, kind: str, columns: Mapping[str, str], label_map: Mapping[str, str]) -> None:
        self.kind = kind_of(kind)
        self.named = self.columns = columns
        self.found: dict[str, str] = {}
        self.spread: tuple[str, ...] = ()
        self.left_over: list[str] = []
        self.reader = LabelReader(label_map)
        self.pair: bool | None = None

    @property
    def labels(self) -> Sequence[str] | None:
        """Labels that are allowed; None allows all."""
        return self.reader.allowed

    @labels.setter
    def labels(self, labels: Sequence[str] | None) -> None:
        self.reader.allowed = labels

    def match(self, first: Mapping[str, Any], labelled: bool, alone: bool) -> None:
        """Find the columns of a file whose fields have other names than ours, or that hold the truth together.

        What was found in an earlier file of the data set is looked for first.

        Args:
            first: The first row of the file.
            labelled: As for ``matched_columns``.
            alone: Likewise.
        """
        earlier = {field: name for field, name in self.found.items() if field not in first and name in first}
        given = {**earlier, **self.named}
        self.spread = self._spread(first, given) if labelled else ()
        names = [name for name in first if name not in self.spread]
        self.columns = matched_columns(self.kind, names, given, labelled and not self.spread, alone)
        self.left_over = left_over(self.kind, names, self.columns.values())
        self.found |= {field: name for field, name in self.columns.items() if field not in self.named}
        if self.spread:
            self.found[str(self.kind.truth)] = " + ".join(self.spread)

    def tell_columns(self) -> None:
        """Tell which columns were found for fields of another name."""
        if self.found:
            found = ", ".join(f"column {column!r} as {field}" for field, column in self.found.items())
            logger.info("data: took %s; columns: (or --text, --label) names others", found)

    def _spread(self, first: Mapping[str, Any], given: Mapping[str, str]) -> tuple[str, ...]:
        truth = self.kind.truth
        if truth is None or truth in given or usual_column(truth, first) is not None:
            return ()
        rest = left_over(self.kind, first, given.values())
        return self.kind.label_columns({name: first[name] for name in rest}, self.labels)

    @property
    def spread_labels(self) -> list[str] | None:
        """The labels whose columns hold the truth together in the file that is being read; None without such."""
        renamed = self.reader.label_map
        return sorted({renamed.get(name, name) for name in self.spread}, key=self.kind.label_order) or None

    def truth_in(self, row: Row) -> Any:
        """Return the truth that a row holds, as it was read; None without one."""
        return None if self.kind.truth is None else self._given(row, self.kind.truth)

    def _given(self, row: Row, name: str) -> Any:
        """Return what a row holds in a field; an empty cell of a text table holds no truth."""
        if name == self.kind.truth and self.spread:
            return {label: row.values.get(label) for label in self.spread}
        value = row.values.get(self.columns.get(name, name))
        may_be_none = row.written and name == self.kind.truth and not self.kind.blank
        return None if may_be_none and isinstance(value, str) and not value.strip() else value

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
        found = {name: self._given(row, name) for name in self.kind.fields}
        values = {name: value for name, value in found.items() if value is not None}
        if row.written:
            values = {name: self._parsed(name, value, values) for name, value in values.items()}
        truth = self.kind.truth
        fields = self._fields(values, labelled)
        missing = [name for name in fields if name not in values]
        if missing:
            raise BadItemError(self.missing(missing, row))
        example: dict[str, Any] = {}
        for name in fields:
            if name == truth:
                example[name] = self.kind.read_truth(values[name], example, self.reader)
            else:
                example[name] = self._input(name, values[name])
        if labelled:
            example |= self.kind.beside(values)
        self._same_form(example)
        group = self._group(row, example)
        return example if group is None else {**example, "group": group}

    def without_column(self, row: Row, labelled: bool) -> list[str]:
        """Return the fields that an item must have and for which a row has no column.

        Args:
            row: A row that was read, of a file whose columns were matched.
            labelled: As for ``check``.
        """
        found = {name: self._given(row, name) for name in self.kind.fields}
        values = {name: value for name, value in found.items() if value is not None}
        held = {name for name in self.kind.fields if self.columns.get(name, name) in row.values} | values.keys()
        return [name for name in self._fields(values, labelled) if name not in held]

    def _fields(self, values: Mapping[str, Any], labelled: bool) -> list[str]:
        truth = self.kind.truth
        return [*self.kind.inputs(values), *([truth] if labelled and truth else [])]

    def _parsed(self, name: str, value: Any, values: Mapping[str, Any]) -> Any:
        return self.kind.parsed(name, value, values) if isinstance(value, str) else value

    def _group(self, row: Row, example: Mapping[str, Any]) -> str | None:
        """Return the group that a row names, under our name, a mapped one or one that is usual; else the kind's own."""
        own = self.columns.get("group")
        if own is not None and own not in row.values:
            raise BadItemError(self.missing(["group"], row))
        usual = ("group", *self.kind.group_columns) if own is None else (own,)
        names = [name for name in usual if name in row.values]
        value = row.values[names[0]] if names else None
        if value is None or (isinstance(value, str) and not value.strip()):
            return self.kind.group_of(example)
        if isinstance(value, float) and value.is_integer():  # as a table has whole numbers that was read with gaps
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise BadItemError(f"{names[0]!r} must name a group by a text or a whole number, not {shown(value)}")
        return plain_text(names[0], str(value))

    def missing(self, names: Sequence[str], row: Row) -> str:
        """Say which fields an item lacks, all of them at once, and which columns there are."""
        columns = {name: self.columns.get(name, name) for name in names}
        found = [f"the field {column!r} is empty" for column in columns.values() if column in row.values]
        absent = {name: column for name, column in columns.items() if column not in row.values}
        if absent:
            there = ", ".join(map(repr, list(row.values)[:SHOWN_LABELS])) or "no fields"
            shown = " and ".join(map(repr, absent.values()))
            which = f"the field {shown} is missing" if len(absent) == 1 else f"the fields {shown} are missing"
            named = ", ".join(f"{name}: ..." for name in absent)
            its = "its column" if len(absent) == 1 else "their columns"
            flags = column_options(self.kind)
            options = " and ".join(dict.fromkeys(flag for name, flag in flags.items() if name in absent))
            on_the_command_line = f", or with {options} on the command line" if options else ""
            cure = f"name {its} with task: {{columns: {{{named}}}}} in a recipe{on_the_command_line}"
            found.append(f"{which}; there are {there}; {cure}")
        return "; ".join(found)

    def _input(self, name: str, value: Any) -> Any:
        if name == "id" and isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if name not in self.kind.lists:
            return plain_text(name, value)
        least = max(1, self.kind.lists[name])
        if not isinstance(value, list) or len(value) < least:
            few = "one string" if least == 1 else "two strings" if least == 2 else f"{least} strings"
            raise BadItemError(f"{name!r} must be a list of {few} or more, not {shown(value)}")
        return [plain_text(name, part) for part in value]

    def _same_form(self, example: Mapping[str, Any]) -> None:
        pair = self.kind.form(example)
        if pair is None:
            return
        if self.pair is None:
            self.pair = pair
        elif self.pair != pair:
            forms = ("a single text", "a pair of texts")
            raise BadItemError(f"has {forms[pair]}, but the items before it have {forms[not pair]}; use one form")
