"""Parts of the data: scores by label and by length, and what was taken for what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eval.encoding import TextEncoder
from eval.inference import Answer
from eval.kinds.kind_registry import kind_of
from eval.predictions import Kept
from eval.proof.paired_statistics import Number
from eval.scores import resampler
from eval.task import TaskSpec

MOST_LABELS = 30
"""Labels up to which the whole confusion table is kept."""
MOST_PAIRS = 10
"""Most frequent errors that are named."""


@dataclass(frozen=True)
class Slice:
    """The score of a part of the examples.

    Attributes:
        group: What the parts are of: ``label``, ``entity`` or ``tokens``.
        name: The label, the type of entity, or the range of token lengths.
        examples: How many there are; of an entity, the sentences that hold one.
        score: By label the share of its examples that are right (mean per-example score), else the task's metric.
        reference: The same of the reference, if there is one.
    """

    group: str
    name: str
    examples: int
    score: Number
    reference: Number | None = None


@dataclass(frozen=True)
class Confusion:
    """What was taken for what (classification).

    Attributes:
        labels: Names in the order of ``counts``; empty when there are too many for a table.
        counts: ``[true][answered]``.
        pairs: (true, answered, count) of the most frequent errors, most frequent first.
    """

    labels: tuple[str, ...] = ()
    counts: tuple[tuple[int, ...], ...] = ()
    pairs: tuple[tuple[str, str, int], ...] = ()


@dataclass(frozen=True)
class Group:
    """A part of the examples.

    Attributes:
        group: What the parts are of: ``label`` or ``tokens``.
        name: The label, or the range of token lengths.
        indices: Its examples.
    """

    group: str
    name: str
    indices: NDArray[np.int64]


def groups(spec: TaskSpec, encoder: TextEncoder, examples: Sequence[Mapping[str, Any]]) -> list[Group]:
    """Split examples by true label (classification) and by quartile of their token length (every kind)."""
    parts = []
    if kind_of(spec.kind).one_label:
        truth = np.array([str(example["label"]) for example in examples])
        parts = [Group("label", label, np.flatnonzero(truth == label)) for label in spec.labels]
    lengths = np.zeros(len(examples), dtype=np.int64)
    for feature in encoder.encode(examples):
        lengths[feature.example] += len(feature.ids)
    quartiles = np.searchsorted(np.quantile(lengths, [0.25, 0.5, 0.75]), lengths, side="left")
    for quartile in range(4):
        indices = np.flatnonzero(quartiles == quartile)
        if len(indices):
            shortest, longest = int(lengths[indices].min()), int(lengths[indices].max())
            name = f"{shortest}" if shortest == longest else f"{shortest}-{longest}"
            parts.append(Group("tokens", name, indices))
    return [part for part in parts if len(part.indices)]


def slices(spec: TaskSpec, parts: Sequence[Group], kept: Kept, reference: Kept | None = None) -> tuple[Slice, ...]:
    """Score each part of the examples, and each type of entity alone (tagging with an entity metric).

    Args:
        spec: What was asked.
        parts: What ``groups`` returned.
        kept: The model's answers.
        reference: The reference's answers to the same examples.
    """
    score = _scorer(spec, kept)
    other = None if reference is None else _scorer(spec, reference)
    found = [
        Slice(part.group, part.name, len(part.indices), score(part), None if other is None else other(part))
        for part in parts
    ]
    if kind_of(spec.kind).words and spec.metric.startswith("entity"):
        for name in dict.fromkeys(tag[2:] for tag in spec.labels if tag[1:2] == "-"):
            present = sum(any(tag[2:] == name for tag in gold["tags"]) for gold in kept.gold)
            if present:
                against = None if reference is None else _entity_score(spec, reference, name)
                found.append(Slice("entity", name, present, _entity_score(spec, kept, name), against))
    return tuple(found)


def _scorer(spec: TaskSpec, kept: Kept) -> Callable[[Group], float]:
    metric, values = resampler(spec, kept.answers, kept.gold), np.asarray(kept.values, dtype=np.float64)

    def score(part: Group) -> float:
        # All examples of one label: the metric may not exist there (Matthews, macro F1), the share of right ones does.
        return float(values[part.indices].mean()) if part.group == "label" else metric(part.indices)

    return score


def _entity_score(spec: TaskSpec, kept: Kept, name: str) -> float:
    def only(tags: Sequence[str]) -> list[str]:
        return [tag if tag[2:] == name else "O" for tag in tags]

    answers, gold = ([{"tags": only(row["tags"])} for row in rows] for rows in (kept.answers, kept.gold))
    return resampler(spec, answers, gold)(np.arange(len(gold), dtype=np.int64))


def confusion(spec: TaskSpec, answers: Sequence[Answer], examples: Sequence[Mapping[str, Any]]) -> Confusion | None:
    """Count what was taken for what; None for other kinds than classification."""
    if not kind_of(spec.kind).one_label:
        return None
    counts = Counter(
        (str(example["label"]), str(answer["label"])) for example, answer in zip(examples, answers, strict=True)
    )
    confusions = [(true, answered, count) for (true, answered), count in counts.items() if true != answered]
    pairs = tuple(sorted(confusions, key=lambda confusion_pair: (-confusion_pair[2], confusion_pair[:2]))[:MOST_PAIRS])
    labels = tuple(dict.fromkeys([*spec.labels, *(label for pair in sorted(counts) for label in pair)]))
    if len(labels) > MOST_LABELS:
        return Confusion(pairs=pairs)
    table = tuple(tuple(counts[true, answered] for answered in labels) for true in labels)
    return Confusion(labels=labels, counts=table, pairs=pairs)
