"""Somebody's data made ready for a finished model: its splits, and the model's names of its labels."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from eval.data.loading import Task
from eval.data.roles import LEAST, MOST, MOST_REPORTED, assign_roles, groups_together
from eval.errors import UserError, quantity
from eval.kinds.kind_registry import kind_of
from eval.task import Example, Examples

UNNAMED = re.compile(r"LABEL_\d+")
NUMBER = re.compile(r"(\d+)(?:\.0+)?")
"""The number of a label, also as a table has it that was read with gaps: 1.0."""
"""What transformers calls the labels of a model that nobody named."""
DOES = ("give ranges", "choose", "report")
"""What the parts of an only split are for, in their order."""
RANGES = 512
"""Examples that 8 bits take their ranges from, where they are carved from the only split."""
MOST_RERANKED = 100
"""Queries of ``train`` that choose for a reranker, which reads up to a hundred documents for each after every epoch."""


Met = Callable[[Examples], Iterable[int]]
"""Returns the numbers, from 0, of the examples that a model has met, in training or when something was chosen."""


def no_one_met(examples: Examples) -> Iterable[int]:
    """Return that none of the examples is known to have been met."""
    del examples
    return ()


def with_test(task: Task, met: Met = no_one_met) -> tuple[Task, str]:
    """Return a task in which other examples report than those that choose, and what was carved for it.

    Where one split alone has labels, whatever its name, a tenth of it (at most 512 examples) gives ranges, three tenths
    (at most 2,000) choose, and the rest reports; drawn by a hash of each example's group, as ``carve`` does.

    Args:
        task: The task.
        met: Returns the numbers of the examples that the model has met; of an only split none of them reports.

    Raises:
        UserError: There are too few examples.
    """
    roles = assign_roles(task)
    chosen, reports = roles.task.select, task.splits.get(roles.report, Examples((), roles.report))
    if len(reports) and len(chosen) and chosen.digest != reports.digest:
        return task, ""
    if len(reports) and len(task.train):  # nothing is trained, so all of it may choose
        chosen = Examples(task.train.items, "validation", task.train.skipped)
        splits = {**task.splits, "validation": chosen, "test": Examples(reports.items, "test", reports.skipped)}
        return replace(task, splits=splits), f"train has too few examples to divide, so all {len(chosen):,} choose."
    name, pool = _only_split(task)
    wanted = {"train": min(RANGES, len(pool) // 10), "validation": min(MOST, 3 * len(pool) // 10), "test": len(pool)}
    parts = _divided(task, pool, wanted, met)
    counts = ", ".join(f"{len(part):,} {does}" for part, does in zip(parts.values(), DOES, strict=True))
    return replace(task, splits=parts), f"{name} is the only split with labels, so it was divided: {counts}."


def with_train(task: Task, met: Met = no_one_met) -> tuple[Task, str]:
    """Return a task in which some examples train and others report, and what was carved for it.

    Where one split alone has labels, whatever its name, three tenths of it (at most 3,000 examples) report, a tenth (at
    least 20, at most 2,000) chooses, and the rest trains; drawn by a hash of each example's group. Where validation and
    test have labels and nothing trains, test reports and validation is divided.

    Args:
        task: The task.
        met: As for ``with_test``.

    Raises:
        UserError: There are too few examples.
    """
    roles = assign_roles(task)
    if len(task.train) and len(task.splits.get(roles.report, ())):
        return task, ""
    name, pool = _only_split(task)
    chosen = max(LEAST, min(MOST, len(pool) // 10))
    if name == "validation" and roles.report == "test":
        parts = _divided(task, pool, {"validation": chosen, "train": len(pool)})
        said = f"there is no train, so validation was divided: {len(parts['train']):,} train, "
        return replace(
            task, splits={**task.splits, **parts}
        ), f"{said}{len(parts['validation']):,} choose; test reports."
    wanted = {"test": min(MOST_REPORTED, 3 * len(pool) // 10), "validation": chosen, "train": len(pool)}
    parts = _divided(task, pool, wanted, met)
    rest = {"unlabeled": task.splits["unlabeled"]} if "unlabeled" in task.splits else {}
    said = f"{name} is the only split with labels, so it was divided: "
    said += f"{len(parts['train']):,} train, {len(parts['validation']):,} choose, {len(parts['test']):,} report."
    return replace(task, splits={**{name: parts[name] for name in reversed(parts)}, **rest}), said


def with_choosing(task: Task, pairs: bool = False) -> tuple[Task, str]:
    """Return a search in which some queries choose and others report, and what was divided for it.

    Where validation or test alone has queries with judgements, three tenths of them (at most 2,000) choose and the rest
    reports; drawn by a hash of each query, as ``with_test`` does. Of a reranker whose ``train`` and ``test`` have some,
    a tenth of those of ``train`` (at least 20, at most 100) chooses, unless there are too few.

    Args:
        task: Queries with their judgements, ``kind: retrieval``.
        pairs: Whether a reranker learns from ``train``, whose pairs of texts cannot be divided later.

    Raises:
        UserError: There are too few queries where one split alone has judgements.
    """
    truth = kind_of(task.spec.kind).truth
    asked = {name: [query for query in split if truth in query] for name, split in task.splits.items()}
    judged = [name for name, queries in asked.items() if queries]
    if pairs and set(judged) == {"train", "test"} and len(asked["train"]) >= 3 * LEAST:
        pool = Examples(asked["train"], "train")
        wanted = {"validation": max(LEAST, min(MOST_RERANKED, len(pool) // 10)), "train": len(pool)}
        parts = _divided(task, pool, wanted)
        said = f"validation has no judgements, so train was divided: {len(parts['train']):,} queries to learn from, "
        return replace(task, splits={**task.splits, **parts}), f"{said}{len(parts['validation']):,} choose."
    if judged not in (["validation"], ["test"]):
        return task, ""
    name, pool = _only_split(replace(task, splits={judged[0]: task.splits[judged[0]]}))
    parts = _divided(task, pool, {"validation": min(MOST, 3 * len(pool) // 10), "test": len(pool)})
    said = f"{name} is the only split with judgements, so it was divided: "
    said += f"{len(parts['validation']):,} queries choose, {len(parts['test']):,} report."
    return replace(task, splits={**task.splits, **parts}), said


def _only_split(task: Task) -> tuple[str, Examples]:
    """Return the split that has to serve for everything.

    Raises:
        UserError: It has too few examples.
    """
    name, pool = next((name, split) for name, split in task.splits.items() if name != "unlabeled")
    if len(pool) < 3 * LEAST:
        raise UserError(
            f"{task.source or 'data'}: has {quantity(len(pool), 'example')}, too few to learn or choose on some and to "
            f"report on others; give at least {3 * LEAST}"
        )
    return name, pool


def _divided(task: Task, pool: Examples, wanted: dict[str, int], met: Met = no_one_met) -> dict[str, Examples]:
    """Return new splits of at least so many examples each, filled one after the other by whole groups.

    Raises:
        UserError: A split would stay empty.
    """
    groups: dict[str, list[Example]] = defaultdict(list)
    known: set[str] = set()
    seen = frozenset(met(pool))
    together = groups_together(task.spec.kind, pool)
    for place, (example, group) in enumerate(zip(pool, together, strict=True)):
        groups[group].append(example)
        if place in seen:
            known.add(group)

    def order(group: str) -> tuple[bool, str]:
        return group not in known, hashlib.sha256(f"judging\n{group}".encode()).hexdigest()

    parts: dict[str, list[Example]] = {split: [] for split in wanted}
    for group in sorted(groups, key=order):
        allowed = [split for split in wanted if split != "test" or group not in known]
        split = next((split for split in allowed if len(parts[split]) < wanted[split]), allowed[-1])
        parts[split] += groups[group]
    if empty := [split for split, part in parts.items() if not part]:
        why = f"{len(known):,} of them known to the model" if known else "which are divided whole"
        raise UserError(
            f"{task.source or 'data'}: has {quantity(len(groups), 'group')} of examples, {why}, too few for each of "
            f"{', '.join(wanted)} ({', '.join(empty)} would be empty); give more, or these splits as files"
        )
    return {split: Examples(part, split) for split, part in parts.items()}


def label_names(found: Sequence[str], own: Sequence[str]) -> tuple[dict[str, str], str]:
    """Return the model's name of each label in the data where they differ, and what was assumed.

    Args:
        found: Labels of the data.
        own: Labels of the model, in the order of its outputs.

    Raises:
        UserError: They cannot be matched.

    Examples:
        >>> label_names(["0", "1"], ["negative", "positive"])
        ({'0': 'negative', '1': 'positive'}, 'labels: 0 = negative, 1 = positive')
    """
    if set(found) <= set(own):
        return {}, ""
    plain = {name.casefold(): name for name in own}
    if all(name.casefold() in plain for name in found):
        names, why = {name: plain[name.casefold()] for name in found}, ""
    elif all((match := NUMBER.fullmatch(name)) and int(match[1]) < len(own) for name in found):
        names, why = {name: own[int(name.partition(".")[0])] for name in found}, ""
    elif all(map(UNNAMED.fullmatch, own)) and len(found) == len(own):
        names, why = dict(zip(sorted(found), own, strict=True)), " (in alphabetical order; the model names none)"
    else:
        raise UserError(
            f"labels: the model answers {_few(own)}, the data has {_few(sorted(found))}; rename those of the data, "
            "or write label_map: {name in the data: name of the model} into the task of a recipe"
        )
    return names, "labels: " + ", ".join(f"{name} = {given}" for name, given in sorted(names.items())) + why


def _few(labels: Sequence[str]) -> str:
    return ", ".join(labels[:10]) + (f" and {len(labels) - 10} more" if len(labels) > 10 else "")
