"""Which examples may say what: those that train, those that choose, and those that report and nothing else."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from eval.data.loading import Task, balanced_weights
from eval.data.readers import format_of
from eval.errors import UserError, quantity
from eval.examples import TEXTS
from eval.kinds.example_inputs import inputs_of
from eval.kinds.kind_registry import kind_of
from eval.task import SELECT, Example, Examples

if TYPE_CHECKING:
    from eval.kinds.kind import Kind

AUTO = "auto"
"""The word for the usual choice of a split."""
SHARE, MOST = 0.1, 2000
"""Share of the training examples that is carved to choose on, and the most of them."""
LEAST = 20
"""Examples under which a choice would be little more than chance, so that nothing is carved."""
SALT = "select"
"""What is hashed before a group; it never changes, so that every recipe and every machine carves the same examples."""
REPORTED, MOST_REPORTED, REPORT_SALT = 0.3, 3000, "report"
"""The same of the training examples that report where no other split has labels."""


@dataclass(frozen=True)
class Roles:
    """A task whose examples have their roles.

    Attributes:
        task: The task; ``task.select`` chooses, and ``task.train`` is what is left to learn from.
        report: Name of the split that reports.
        notes: What was done, as plain sentences.
    """

    task: Task
    report: str = "validation"
    notes: tuple[str, ...] = ()


def assign_roles(task: Task, split: str = AUTO, select: str = AUTO) -> Roles:
    """Say which examples train, which choose and which report.

    A labelled ``test`` split reports, else ``validation``. Where ``train`` alone has labels, a part of it becomes
    ``validation``: 30%, at most 3,000. What chooses is a split named ``select``, or ``validation`` if it does not
    report, or else a part of ``train``: 10%, at most 2,000. A part is taken away from ``train`` and drawn by a hash of
    each example's group (see ``group_of``), so it depends on neither seed nor order, and no group is on both sides.
    Where too few examples have labels, nothing is chosen: the last epoch of a training is the result.

    Args:
        task: The task as it was read; it stays as it is.
        split: The split that reports, or ``auto``.
        select: The split that chooses, or ``auto``. The same as ``split`` is allowed: scores then have the role
            ``selection``.

    Raises:
        UserError: There is no such split.

    Examples:
        >>> from eval import Examples, Task, TaskSpec
        >>> films = [{"text": f"film {number}", "label": ("bad", "good")[number % 2]} for number in range(300)]
        >>> spec = TaskSpec(kind="classification", labels=("bad", "good"))
        >>> task = Task(spec, {"train": Examples(films, "train"), "validation": Examples(films[:20], "validation")})
        >>> roles = assign_roles(task)
        >>> roles.report, len(roles.task.train), len(roles.task.select)
        ('validation', 270, 30)
    """
    problems = [
        f"{field}: {task.lacks(name)}"
        for field, name in (("split", split), ("select", select))
        if name != AUTO and not len(task.splits.get(name, ()))
    ]
    if problems:
        raise UserError(*problems)
    whole, report, held_out = task.train, reporting(task, split), False
    if not len(task.splits.get(report, ())):
        held, rest = carve(task, REPORTED, MOST_REPORTED, REPORT_SALT)
        if not len(held) or not kind_of(task.spec.kind).scored:
            return Roles(task, report, (_silent(task),))  # so that whatever is there may choose
        task = replace(task, splits={**task.splits, report: Examples(held.items, report), "train": rest})
        held_out = True
    usual = SELECT if SELECT in task.splits else "validation"
    select = usual if select == AUTO and usual != report and len(task.splits.get(usual, ())) else select
    chosen, train = carve(task) if select == AUTO else (task.splits[select], task.train)
    kind = kind_of(task.spec.kind)
    splits = {**task.splits, SELECT: chosen} | ({"train": train} if "train" in task.splits else {})
    parts = [f"train {len(train):,}"] if len(train) else []
    if len(chosen):
        parts.append(f"select {len(chosen):,}" + (" carved from train" if select == AUTO else f" of {select}"))
    parts.append(
        f"{'test' if report == 'test' else f'test: {report}'} {len(task.splits[report]):,}"
        + (" carved from train, the only split with labels" if held_out else "")
    )
    notes = [f"{', '.join(parts)}."]
    if not len(chosen) and len(train):
        notes.append(
            f"Nothing is chosen, and the last epoch of every training is kept: {uncarved(task)}. {_cure(kind)}"
        )
    if len(chosen) and chosen.digest == task.splits[report].digest:
        notes.append(f"{report} chooses and reports, so its scores are those of a selection and show no margin.")
    spec = task.spec
    every = set(spec.labels) <= {label for example in train for label in _labels(kind, example)}
    if spec.class_weights is not None and every and spec.class_weights == balanced_weights(spec, whole):
        spec = spec.model_copy(update={"class_weights": balanced_weights(spec, train)})  # of what is left
    return Roles(replace(task, spec=spec, splits=splits), report, tuple(notes))


def read_as(task: Task) -> str:
    """Return what became of a file or table that was given without the name of a split; empty if none was.

    Examples:
        >>> from eval import Examples, Task, TaskSpec
        >>> spec = TaskSpec(kind="classification", labels=("bad", "good"))
        >>> read_as(Task(spec, {"validation": Examples([{"text": "a warm film", "label": "good"}])}, "films.csv"))
        'films.csv is one file and was read as validation; files: {train: films.csv} makes it what is learned from.'
    """
    place = Path(task.source)
    if {*task.splits} - {SELECT} != {"validation"} or format_of(place) is None or place.name.startswith("validation."):
        return ""
    return (
        f"{task.source} is one file and was read as validation; files: {{train: {task.source}}} makes it what is "
        "learned from."
    )


def _silent(task: Task) -> str:
    """Return why nothing reports."""
    reason = uncarved(task, REPORTED, MOST_REPORTED, REPORT_SALT)
    where = task.source or "the task"
    return f"Nothing reports: {where} has no validation or test split with labels, and {reason}."


def uncarved(task: Task, share: float = SHARE, most: int = MOST, salt: str = SALT) -> str:
    """Return why no part of the training examples can be carved, with how many there are and how many are needed.

    Args:
        task: The task.
        share: As for ``carve``.
        most: As for ``carve``.
        salt: As for ``carve``.
    """
    kind, has = kind_of(task.spec.kind), f"train has {quantity(len(task.train), 'example')}"
    if kind.searches and not any(kind.truth in example for example in task.train):
        what = "pairs of texts" if any(TEXTS[0] in example for example in task.train) else "single texts"
        return f"{has} to learn from, {what}, and {kind.named} task is scored on queries with their judgements"
    fit = _groups(task)
    labelled = sum(map(len, fit.values()))
    if labelled < (least := math.ceil(LEAST / share)):
        return f"{has}, {labelled:,} of them with labels, and a part is carved from {least} on"
    wanted = min(most, int(share * labelled))
    smallest, largest = min(map(len, fit.values())), max(map(len, fit.values()))
    return (
        f"{has}, {labelled:,} of them with labels, in {quantity(len(fit), 'group')} of {smallest:,} to {largest:,}, "
        f"and no part of {LEAST} to {wanted:,} holds whole groups and leaves an example of every label in train"
    )


def _cure(kind: Kind) -> str:
    """Return what gives a task of this kind examples that choose."""
    if kind.searches:
        return "Give both qrels/dev.tsv and qrels/test.tsv; the queries of dev then choose."
    return f"Give more examples with labels, or others that choose with task: {{files: {{{SELECT}: FILE}}}}."


def carve(task: Task, share: float = SHARE, most: int = MOST, salt: str = SALT) -> tuple[Examples, Examples]:
    """Return the examples carved from ``train`` to choose on, none where there are too few, and the rest of it.

    A group is carved whole, if all of its examples have labels, and ``train`` keeps an example of every label.

    Args:
        task: The task.
        share: Share of the examples with labels that is carved.
        most: Most examples that are carved.
        salt: What is hashed before a group.
    """
    kind, fit = kind_of(task.spec.kind), _groups(task)
    wanted = min(most, int(share * sum(map(len, fit.values()))))
    left = Counter(label for example in task.train for label in _labels(kind, example))
    taken: set[int] = set()
    for group in sorted(fit, key=lambda group: _rank(salt, group)):
        own = Counter(label for place in fit[group] for label in _labels(kind, task.train[place]))
        if len(taken) + len(fit[group]) <= wanted and all(left[label] > count for label, count in own.items()):
            taken.update(fit[group])
            left -= own
    if len(taken) < LEAST:
        return Examples((), SELECT), task.train
    sides: dict[bool, list[Example]] = {True: [], False: []}
    for place, example in enumerate(task.train):
        sides[place in taken].append(example)
    return Examples(sides[True], SELECT), Examples(sides[False], task.train.name, task.train.skipped)


def _groups(task: Task) -> dict[str, list[int]]:
    """Return the places of each group of the training examples of which all have labels."""
    kind = kind_of(task.spec.kind)
    groups: dict[str, list[int]] = defaultdict(list)
    for place, group in enumerate(groups_together(task.spec.kind, task.train)):
        groups[group].append(place)
    return {
        group: places
        for group, places in groups.items()
        if kind.truth is None or all(kind.truth in task.train[place] for place in places)
    }


def _labels(kind: Kind, example: Example) -> set[str]:
    """Return the labels of an example, if its kind has names for them."""
    truth = kind.truth
    return set(kind.labels_in(example[truth])) if kind.labelled and truth is not None and truth in example else set()


def groups_together(kind: str, examples: Iterable[Example]) -> list[str]:
    """Return for each example what it has in common with those that must be on its side of a division.

    That is its group, else what is read. Groups that hold the same text are one, named by the first of them in order.

    Args:
        kind: Kind of task.
        examples: The examples.
    """
    own, read = [], []
    for example in examples:
        own.append(group_of(kind, example))
        read.append(inputs_of(kind, example))
    first = dict(zip(own, own, strict=True))

    def root(group: str) -> str:
        while first[group] != group:
            first[group] = group = first[first[group]]
        return group

    holder: dict[str, str] = {}
    for group, text in zip(own, read, strict=True):
        low, high = sorted((root(group), root(holder.setdefault(text, group))))
        first[high] = low
    return [root(group) for group in own]


def group_of(kind: str, example: Example) -> str:
    """Return the group of an example, else what is read of it."""
    asked = kind_of(kind)
    group = example.get("group") or asked.group_of(example)
    read = {name: value for name, value in example.items() if name not in asked.gold and name != "id"}
    return json.dumps(read if group is None else ["group", group], sort_keys=True, ensure_ascii=False)


def _rank(salt: str, group: str) -> str:
    """Return a number, in hexadecimal, that only the salt and the group decide."""
    return hashlib.sha256(f"{salt}\n{group}".encode()).hexdigest()


def reporting(task: Task, split: str = AUTO) -> str:
    """Return the split that reports: the one that is named, else test if it has labels, else validation."""
    truth = kind_of(task.spec.kind).truth
    labelled = len(task.test) > 0 and (truth is None or all(truth in example for example in task.test))
    return split if split != AUTO else "test" if labelled else "validation"
