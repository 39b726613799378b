"""Reading the splits of a data set: every item checked, every problem gathered before one is told."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from eval.data.item_checks import BadItemError, Checker
from eval.data.sources import Source
from eval.errors import UserError, few, quantity
from eval.files.rows import NOT_UTF8, Row, is_windows_1252
from eval.kinds.kind import Kind
from eval.task import Example, Examples

logger = logging.getLogger(__name__)

FIRST, SHOWN = 3, 20
"""Problems that one message lists: of a file without a good item, and of others."""


def read_splits(
    sources: Mapping[str, Source], checker: Checker, on_bad: str, keep_labels: bool = False
) -> dict[str, Examples]:
    """Read every split, the one that the labels come from first.

    Args:
        sources: Where the splits are, by name.
        checker: Checks their items; it knows labels and columns of what was read so far.
        on_bad: Whether bad items refuse the data (``refuse``) or are left out (``skip``).
        keep_labels: Whether ``train`` keeps its labels where only texts are learned from.

    Raises:
        UserError: Items are bad and may not be skipped, or a split has none.
    """
    splits: dict[str, Examples] = {}
    problems: list[str] = []
    bad: list[str] = []
    for name, source in sources.items():
        try:
            items, wrong = _read_split(name, source, checker, keep_labels)
        except UserError as error:
            problems += error.problems
            continue
        if wrong and on_bad == "skip":
            logger.warning(
                "%s: left out %s of %d: %s: %s",
                source.name,
                quantity(len(wrong), "bad item"),
                len(items) + len(wrong),
                *wrong[0],
            )
        elif wrong:
            bad += _lines(source, items, wrong, checker.kind)
        if not items and not wrong:
            problems.append(f"{source.name}: is empty; put items into it, or take the file away")
        elif not items and on_bad == "skip":
            problems.append(
                f"{source.name}: nothing is left of it but {quantity(len(wrong), 'bad item')}, such as "
                f"{': '.join(wrong[0])}"
            )
        if checker.labels is None:
            checker.labels = checker.spread_labels or _labels(checker.kind, items)
            told = checker.kind.one_label and (not wrong or on_bad == "skip")  # bad items may have others
            if told and checker.labels is not None and len(checker.labels) < 2:
                problems.append(f"{source.name}: all labels are {checker.labels[0]!r}; there must be two or more")
        splits[name] = Examples(items, name, len(wrong))
    if checker.labels is None and checker.kind.labelled and not (problems or bad):
        problems.append("labels: no split has any; add a train split, or name them with labels: [...]")
    if problems or bad:
        raise UserError(*problems, *few(bad, SHOWN, "bad item", "; on_bad: skip leaves them out"))
    return splits


def _lines(source: Source, items: Sequence[Example], bad: Sequence[tuple[str, str]], kind: Kind) -> list[str]:
    """Return a line for each bad item; if all of many are bad, what they have in common, or the first of them."""
    name = source.name
    unread = [f"{where}: {problem}" for where, problem in bad if problem == NOT_UTF8]
    if len(unread) > FIRST and source.path is not None:
        looks = "looks like Windows-1252: save it as UTF-8"
        cure = looks if is_windows_1252(source.path) else "save it as UTF-8"
        rest = [(where, problem) for where, problem in bad if problem != NOT_UTF8]
        lines = _lines(source, items, rest, kind) if rest else []
        return [*unread[:FIRST], f"{name}: {len(unread):,} lines are not valid UTF-8; {cure}", *lines]
    told = [f"{where}: {problem}" for where, problem in bad]
    if items or len(bad) <= SHOWN:
        return told
    if len({problem for _, problem in bad}) == 1:
        return [f"{name}: all {len(bad):,} items: {bad[0][1]}"]
    question = f"is it data of another kind of task than {kind.name}?"
    return [*told[:FIRST], f"{name}: all {len(bad):,} items are bad, such as these {FIRST}; {question}"]


def _read_split(
    name: str, source: Source, checker: Checker, keep_labels: bool = False
) -> tuple[list[Example], list[tuple[str, str]]]:
    """Return the items of a split, and the place and the problem of each bad one."""
    of_texts = checker.kind.texts_alone
    labelled = name != "unlabeled" and (keep_labels or not (of_texts and name == "train"))
    may_lack = labelled and (of_texts or name == "test")
    head, rows = matched_rows(source, checker, labelled, alone=labelled and not may_lack)
    if may_lack and name == "test":  # with some truths, those that are missing are errors
        head += rows
    if may_lack:
        seen = head if name == "test" else head[:1]
        labelled = any(row.problem or checker.truth_in(row) is not None for row in seen)
    items, bad = _checked(chain(head, rows), checker, labelled)
    if name == "test" and labelled and (number := _secret(head, items, checker)) is not None:
        logger.warning(
            "%s: every label is %g, as where the truth is kept secret; it counts as unlabelled", source.name, number
        )
        items, bad = _checked(head, checker, labelled=False)
    return items, bad


def _checked(rows: Iterable[Row], checker: Checker, labelled: bool) -> tuple[list[Example], list[tuple[str, str]]]:
    """Return the examples that rows hold, and the place and the problem of each bad one."""
    items: list[Example] = []
    bad: list[tuple[str, str]] = []
    for row in rows:
        try:
            items.append(checker.check(row, labelled))
        except BadItemError as error:
            bad.append((row.where, str(error)))
    return items, bad


def _secret(rows: Sequence[Row], items: Sequence[Example], checker: Checker) -> float | None:
    """Return the number that stands in the place of every truth; None if there are truths.

    That is the one number of all items, or -1 where no label is called so.

    Args:
        rows: As they were read.
        items: Those that are good.
        checker: Has checked them.
    """
    truth = checker.kind.truth
    if truth is None:
        return None
    if not items:
        return -1.0 if rows and all(checker.truth_in(row) in (-1, "-1") for row in rows) else None
    first = items[0][truth]
    same = isinstance(first, float) and len(items) > 1 and all(item[truth] == first for item in items)
    return first if same else None


def matched_rows(source: Source, checker: Checker, labelled: bool, alone: bool) -> tuple[list[Row], Iterator[Row]]:
    """Let a checker find the columns of a file, which are those of the first row that can be read.

    Args:
        source: The file.
        checker: Checks its items.
        labelled: As for ``Checker.match``.
        alone: Likewise.

    Returns:
        The rows up to that one, and those after it.

    Raises:
        UserError: The file cannot be read at all.
    """
    rows = _rows(source, checker)
    head = []
    for row in rows:
        head.append(row)
        if not row.problem:
            checker.match(row.values, labelled, alone)
            break
    return head, rows


def _rows(source: Source, checker: Checker) -> Iterator[Row]:
    return iter(source.rows() if checker.named else checker.kind.rows(source.rows()))


def without_column(source: Source, kind: str, columns: Mapping[str, str]) -> tuple[list[str], str]:
    """Return the fields for which a file that is learned from has no column, and a sentence that says so.

    The first row that can be read decides; where none can, nothing is said.

    Args:
        source: The file.
        kind: Kind of task.
        columns: Columns that were named.

    Raises:
        UserError: The file cannot be read at all.
    """
    checker = Checker(kind, columns, {})
    labelled = not checker.kind.texts_alone
    first = next((row for row in _rows(source, checker) if not row.problem), None)
    if first is None:
        return [], ""
    checker.match(first.values, labelled, alone=labelled)
    absent = checker.without_column(first, labelled)
    return absent, f"{first.where}: {checker.missing(absent, first)}" if absent else ""


def truths(kind: Kind, items: Iterable[Example]) -> Iterable[str]:
    """Yield every label of every example that has one."""
    for item in items:
        if kind.truth is not None and kind.truth in item:
            yield from kind.labels_in(item[kind.truth])


def _labels(kind: Kind, items: Iterable[Example]) -> list[str] | None:
    return sorted(set(truths(kind, items)), key=kind.label_order) or None if kind.labelled else None
