"""Reading texts to be changed, and unlabelled text of the domain of a task: a transfer set, which a teacher answers."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from eval.data.columns import named_columns
from eval.data.item_checks import BadItemError, Checker
from eval.data.sources import Source, find_sources
from eval.data.split_reading import matched_rows
from eval.errors import UserError, did_you_mean, few
from eval.files.paths import user_path
from eval.kinds.kind_registry import kind_of
from eval.task import Example, TaskSpec

logger = logging.getLogger(__name__)

SHOWN = 20
"""Problems that one message lists."""


def read_unlabelled(path: str, spec: TaskSpec, columns: Mapping[str, str] | None = None) -> list[Example]:
    """Return the items of a file as examples without a label; fields and formats are those of the task's own data.

    Args:
        path: A file with one text a line, or whatever else ``load_task`` reads; of a folder, its ``unlabeled`` split.
        spec: The task; pairs are read for a task of pairs.
        columns: The task's column for each of our fields; those that the file lacks are passed over, and usual names
            are found by themselves.

    Raises:
        UserError: If nothing can be read, or items are bad.
    """
    source = _source(path, "unlabeled")
    first = _first(source)
    checker = Checker(spec.kind, {field: name for field, name in (columns or {}).items() if name in first}, {})
    found = _checked(source, checker, labelled=False)
    if bool(checker.pair) != spec.pair:
        forms = ("single texts", "pairs (text_a and text_b)")
        raise UserError(f"{path}: holds {forms[not spec.pair]}, but the examples of the task are {forms[spec.pair]}")
    return found


def read_examples(
    data: str,
    split: str = "train",
    kind: str | None = None,
    text: str | Sequence[str] | None = None,
    label: str | None = None,
) -> list[Example]:
    """Return the items of a file, or of a split of a folder, each with its label if it has one.

    Args:
        data: A file, a folder or a hub name.
        split: Which items of a folder.
        kind: Of the task; by default what the first item looks like.
        text: The column with the text; two for a pair. Usual names are found by themselves.
        label: The column with the label; likewise.

    Raises:
        UserError: If nothing can be read, or items are bad.
    """
    source = _source(data, split)
    if kind is None:
        kind = _kind(_first(source))
    checker = Checker(kind, named_columns(kind_of(kind), text, label), {})
    found = _checked(source, checker, labelled=True)
    checker.tell_columns()
    rest = checker.left_over
    if rest and checker.kind.truth is not None and not any(checker.kind.truth in example for example in found):
        logger.warning(
            "%s: no item has a label, and none was taken from %s; --label names its column",
            source.name,
            ", ".join(f"column {name!r}" for name in rest),
        )
    return found


def _first(source: Source) -> Mapping[str, Any]:
    return next((row.values for row in source.rows() if not row.problem), {})


def _source(data: str, split: str) -> Source:
    sources = find_sources(data, {})
    if user_path(data).is_file():
        (source,) = sources.values()
        return source
    if split not in sources:
        raise UserError(f"{data}: there is no split {split!r}{did_you_mean(split, sources)}")
    return sources[split]


def _checked(source: Source, checker: Checker, labelled: bool) -> list[Example]:
    """Return the items of a file; of those that may have a label, each with its own if it has one."""
    found: list[Example] = []
    bad: list[str] = []
    for row in chain(*matched_rows(source, checker, labelled, alone=False)):
        try:
            found.append(checker.check(row, labelled and checker.truth_in(row) is not None))
        except BadItemError as error:
            bad.append(f"{row.where}: {error}")
    if bad:
        raise UserError(*few(bad, SHOWN, "bad item"))
    if not found:
        raise UserError(f"{source.name}: is empty; there is nothing to read")
    return found


def _kind(values: Any) -> str:
    """Return the kind of task whose items have such fields."""
    if "tokens" in values:
        return "tagging"
    if "context" in values:
        return "qa"
    if "labels" in values:
        return "multilabel"
    return "regression" if isinstance(values.get("label"), float) else "classification"
