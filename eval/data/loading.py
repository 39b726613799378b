"""Loading a task: its examples, checked item by item, and the specification that follows from them."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from eval.data.arguments import Weights, specification, wrong_arguments
from eval.data.item_checks import BadItemError, Checker
from eval.data.sources import Source, find_sources, in_memory
from eval.errors import UserError, did_you_mean
from eval.kinds.kind import Kind
from eval.kinds.kind_registry import kind_of
from eval.metrics.own_metric import Function, OwnMetric
from eval.scores import default_metric, unfit
from eval.task import Example, Examples, Task, TaskSpec

logger = logging.getLogger(__name__)

SHOWN = 20
"""Problems that one message lists."""


def load_task(
    kind: str,
    data: Any = None,
    *,
    metric: str | Function | None = None,
    labels: Sequence[str] | None = None,
    label_map: Mapping[str, str] | None = None,
    max_length: int | None = None,
    stride: int | None = None,
    truncation: str | None = None,
    truncation_side: str = "right",
    pooling: str | None = None,
    normalize: bool | None = None,
    class_weights: Weights | None = None,
    on_bad: str = "refuse",
    files: Mapping[str, str | Path] | None = None,
    columns: Mapping[str, str] | None = None,
    limit: Mapping[str, int] | None = None,
    seed: int = 13,
    keep_labels: bool = False,
) -> Task:
    """Read a data set and say what it asks.

    Args:
        kind: classification, regression, tagging, qa, masked-lm, embedding or multiple-choice, which also reads the
            rows of SWAG and RACE (see ``eval.kinds.choice_formats``), or one of another package (``eval.kinds``).
        data: A folder with a file a split (``train``, ``validation``, ``test``, ``unlabeled``; .jsonl, .json, .csv,
            .tsv, .parquet, .txt, also with .gz), one file (``validation``, unless it is called after another split), a
            folder written by ``datasets.save_to_disk``, or a hub name ``owner/name[:config]``; or a table in memory: a
            pandas ``DataFrame``, a ``datasets.Dataset`` or a list of dicts, alone (``validation``) or by split
            (``{"train": ..., "test": ...}``, ``datasets.DatasetDict``).
        metric: The primary metric; by default accuracy, spearman, entity_f1, f1 or masked_accuracy, for
            multiple-choice accuracy, and for embedding spearman (pairs) or nearest (single texts). Or a function of
            your own, ``(y_true, y_pred) -> float``, higher is better (see ``eval.metrics.own_metric``).
        labels: Labels in the order of their ids; by default those of the train split (or else of the first split that
            has any) in alphabetical order, for tagging with O first.
        label_map: New name of labels in the files; it is applied before all else. For regression, and for pairs of
            embedding, the number that a name stands for.
        max_length: Most tokens of one input; by default 128, for qa 384.
        stride: Tokens that neighbouring windows share; by default 32, for qa 128.
        truncation: longest_first (by default), only_first (for multiple-choice: the text, not its choices) or
            only_second.
        truncation_side: left or right.
        pooling: For embedding: mean (by default) or first.
        normalize: For embedding: whether vectors are scaled to length 1; by default they are.
        class_weights: ``balanced`` (n / (classes * count), over the whole train split), or the weight of some labels,
            where others weigh 1.
        on_bad: Whether bad items refuse the data (``refuse``) or are left out and counted (``skip``).
        files: The file of a split, or the data set's own name of a split.
        columns: The file's column for each of our fields, such as ``{"text": "sentence"}``; usual names are found by
            themselves (``eval.data.columns``), and told.
        limit: Most examples of a split; a sample is drawn.
        seed: Draws the samples.
        keep_labels: For embedding: whether ``train`` keeps its labels, to learn from them without a teacher.

    A ``test`` split whose first item has no label counts as unlabelled. Items of ``unlabeled`` never keep one.

    A teacher's vectors are learned from texts alone: for embedding ``train`` keeps no labels unless ``keep_labels``
    asks for them, takes single texts and pairs alike, and gets the texts of ``unlabeled`` too; a ``validation`` without
    labels is no error, it just cannot be scored.

    Raises:
        UserError: An argument is wrong, nothing can be read, or items are bad; all of it at once, as far as possible.

    Examples:
        >>> import json, pathlib
        >>> films = [{"text": "a warm film", "label": "good"}, {"text": "a dull film", "label": "bad"}]
        >>> _ = pathlib.Path("films.json").write_text(json.dumps(films))
        >>> task = load_task("classification", data="films.json", max_length=64)
        >>> task.spec.labels, task.spec.metric, len(task.validation)
        (('bad', 'good'), 'accuracy', 2)
    """
    if callable(metric):
        metric = OwnMetric(metric)
    spec = specification(
        kind,
        metric,
        max_length=max_length,
        stride=stride,
        truncation=truncation,
        truncation_side=truncation_side,
        pooling=pooling,
        normalize=normalize,
    )
    columns, label_map, limit = dict(columns or {}), dict(label_map or {}), dict(limit or {})
    problems = wrong_arguments(kind, labels, class_weights, on_bad, columns, limit)
    if problems:
        raise UserError(*problems)
    sources = find_sources(data, files or {})
    unknown = [
        f"limit: there is no split {name!r}{did_you_mean(name, sources)}" for name in limit if name not in sources
    ]
    if unknown:
        raise UserError(*unknown)
    checker = Checker(kind, columns, {str(old): str(new) for old, new in label_map.items()})
    checker.labels = None if labels is None else [str(label) for label in labels]
    splits = _read(sources, checker, on_bad, keep_labels)
    if checker.found:
        found = ", ".join(f"{field} = {column}" for field, column in checker.found.items())
        logger.info("data: found %s; columns: says otherwise", found)
    spec = spec.model_copy(update=_found(spec, checker, metric))
    spec = spec.model_copy(update={"class_weights": _weights(spec, class_weights, splits.get("train", ()))})
    misfit = unfit(spec.metric, spec)
    if misfit:
        raise UserError(f"metric: {misfit}")
    splits = {name: split.sample(limit[name], seed) if name in limit else split for name, split in splits.items()}
    if checker.kind.vectors:
        splits = _texts_together(splits)
    named = (files or {}).values() if data is None else [data]
    return Task(spec, splits, "" if in_memory(data) else ", ".join(map(str, named)))


def _found(spec: TaskSpec, checker: Checker, metric: str | None) -> dict[str, Any]:
    """Return the fields of the specification that the data decides."""
    if checker.kind.vectors and checker.pair is None:  # no item has a label
        return {}
    pair = bool(checker.pair)
    return {"labels": tuple(checker.labels or ()), "pair": pair, "metric": metric or default_metric(spec.kind, pair)}


def _texts_together(splits: Mapping[str, Examples]) -> dict[str, Examples]:
    """Return the splits with the texts of ``unlabeled`` at the end of ``train``."""
    rest = {name: split for name, split in splits.items() if name not in ("train", "unlabeled")}
    parts = [splits[name] for name in ("train", "unlabeled") if name in splits]
    if not parts:
        return rest
    items = [item for part in parts for item in part]
    return {"train": Examples(items, "train", sum(part.skipped for part in parts)), **rest}


def _read(
    sources: Mapping[str, Source], checker: Checker, on_bad: str, keep_labels: bool = False
) -> dict[str, Examples]:
    """Read every split, the one that the labels come from first.

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
                "%s: left out %d bad items of %d: %s: %s",
                source.name,
                len(wrong),
                len(items) + len(wrong),
                *wrong[0],
            )
        elif wrong:
            bad += _lines(source.name, items, wrong)
        if not items and not wrong:
            problems.append(f"{source.name}: is empty; put items into it, or take the file away")
        elif not items and on_bad == "skip":
            problems.append(
                f"{source.name}: nothing is left of it; all {len(wrong)} items are bad, such as {': '.join(wrong[0])}"
            )
        if checker.labels is None:
            checker.labels = _labels(checker.kind, items)
            if checker.kind.one_label and checker.labels is not None and len(checker.labels) < 2:
                problems.append(f"{source.name}: all labels are {checker.labels[0]!r}; there must be two or more")
        splits[name] = Examples(items, name, len(wrong))
    if checker.labels is None and checker.kind.labelled and not (problems or bad):
        problems.append("labels: no split has any; add a train split, or name them with labels: [...]")
    if len(bad) > SHOWN:
        bad = [*bad[:SHOWN], f"... and {len(bad) - SHOWN} more bad items; on_bad: skip leaves them out"]
    if problems or bad:
        raise UserError(*problems, *bad)
    return splits


def _lines(name: str, items: Sequence[Example], bad: Sequence[tuple[str, str]]) -> list[str]:
    """Return a line for each bad item; one for all if all have the same problem, as when columns have other names."""
    if not items and len(bad) > SHOWN and len({problem for _, problem in bad}) == 1:
        return [f"{name}: all {len(bad):,} items: {bad[0][1]}"]
    return [f"{where}: {problem}" for where, problem in bad]


def _read_split(
    name: str, source: Source, checker: Checker, keep_labels: bool = False
) -> tuple[list[Example], list[tuple[str, str]]]:
    """Return the items of a split, and the place and the problem of each bad one."""
    items: list[Example] = []
    bad: list[tuple[str, str]] = []
    of_texts = checker.kind.vectors
    labelled = name != "unlabeled" and (keep_labels or not (of_texts and name == "train"))
    may_lack = labelled and (of_texts or name == "test")
    rows = iter(source.rows() if checker.named else checker.kind.rows(source.rows()))
    head = []
    for row in rows:
        head.append(row)
        if not row.problem:  # its columns are those of the file
            checker.match(row.values, labelled, alone=labelled and not may_lack)
            break
    for number, row in enumerate(chain(head, rows)):
        if number == 0 and may_lack:
            labelled = bool(row.problem) or checker.has_truth(row)
        try:
            items.append(checker.check(row, labelled))
        except BadItemError as error:
            bad.append((row.where, str(error)))
    return items, bad


def _truths(kind: Kind, items: Iterable[Example]) -> Iterable[str]:
    for item in items:
        if kind.truth is not None and kind.truth in item:
            yield from kind.labels_in(item[kind.truth])


def _labels(kind: Kind, items: Iterable[Example]) -> list[str] | None:
    return sorted(set(_truths(kind, items)), key=kind.label_order) or None if kind.labelled else None


def balanced_weights(spec: TaskSpec, train: Iterable[Example]) -> tuple[float, ...]:
    """Return n / (classes * count) of each label.

    Raises:
        UserError: A label never occurs.
    """
    counts = Counter(_truths(kind_of(spec.kind), train))
    never = [label for label in spec.labels if not counts[label]]
    if never:
        raise UserError(f"class_weights: balanced needs every label in the train split; missing: {', '.join(never)}")
    return tuple(counts.total() / (len(spec.labels) * counts[label]) for label in spec.labels)


def _weights(spec: TaskSpec, given: Weights | None, train: Iterable[Example]) -> tuple[float, ...] | None:
    if given is None:
        return None
    if isinstance(given, str):
        return balanced_weights(spec, train)
    known = frozenset(spec.labels)
    problems = [
        f"class_weights: there is no label {label!r}{did_you_mean(label, spec.labels)}"
        for label in given
        if label not in known
    ]
    problems += [
        f"class_weights: {label}: got {weight!r}; must be a finite number above 0"
        for label, weight in given.items()
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 < weight < math.inf
    ]
    if problems:
        raise UserError(*problems)
    return tuple(float(given.get(label, 1.0)) for label in spec.labels)
