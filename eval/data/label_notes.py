"""What a user should know of the labels of a data set, although nothing about them is an error."""

from __future__ import annotations

import json
from collections import Counter, defaultdict

from eval.data.loading import Task
from eval.kinds.kind_registry import kind_of
from eval.kinds.values import SHOWN_LABELS


def label_notes(task: Task) -> tuple[str, ...]:
    """Return a sentence on labels that look like one and are several, and one on labels of a single example.

    Examples are counted in the split that the labels come from: ``train``, or the first that has any.

    Examples:
        >>> from eval import Task
        >>> films = [{"text": "a", "label": "good"}, {"text": "b", "label": "good"}, {"text": "c", "label": "bad"}]
        >>> label_notes(Task.from_list(films))[0]
        "Labels of a single example in validation, too few to learn from: 'bad'; label_map can join them to others."
    """
    kind = kind_of(task.spec.kind)
    if not kind.labelled or kind.truth is None:
        return ()
    for name, split in task.splits.items():
        counts = Counter(
            label for example in split if kind.truth in example for label in set(kind.labels_in(example[kind.truth]))
        )
        if counts:
            return tuple(filter(None, (_alike(counts), _alone(counts, name))))
    return ()


def _alike(counts: Counter[str]) -> str:
    """Return what is said of labels that are alike but for case and blanks; the most frequent keeps its name."""
    forms: dict[str, list[str]] = defaultdict(list)
    for label in sorted(counts, key=lambda label: (-counts[label], label)):
        forms[label.strip().casefold()].append(label)
    renamed = {other: first for first, *others in forms.values() for other in others}
    if not renamed:
        return ""
    pairs = _few([f"{other!r} beside {first!r}" for other, first in renamed.items()])
    shown = dict(list(renamed.items())[:SHOWN_LABELS])
    return (
        f"Labels that differ by case or blanks at their ends alone are labels of their own: {pairs}; "
        f"label_map: {json.dumps(shown, ensure_ascii=False)} makes them one."
    )


def _alone(counts: Counter[str], split: str) -> str:
    """Return what is said of labels that one example has."""
    labels = _few([repr(label) for label in sorted(counts) if counts[label] == 1])
    if not labels:
        return ""
    return f"Labels of a single example in {split}, too few to learn from: {labels}; label_map can join them to others."


def _few(names: list[str]) -> str:
    more = len(names) - SHOWN_LABELS
    return ", ".join(names[:SHOWN_LABELS]) + (f" and {more:,} more" if more > 0 else "")
