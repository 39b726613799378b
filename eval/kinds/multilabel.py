"""Several labels a text: each label of the task is a yes-or-no question of its own about a text or a pair of texts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from eval.examples import TEXT, TEXTS, Answer, Array, Asks, Example, Feature, Reads
from eval.kinds.kind import Kind
from eval.kinds.values import BadItemError, LabelReader, shown, written_list
from eval.metrics import label_sets, scorers
from eval.metrics.label_thresholds import best_thresholds
from eval.metrics.scorers import Metric, Values

if TYPE_CHECKING:
    from torch import Tensor

SEPARATORS = "|;,"
"""What may stand between labels in one text; the first of these that occurs does."""
YES_NO: dict[Any, bool] = {
    **{1: True, 0: False},
    **{"1": True, "0": False, "1.0": True, "0.0": False, "true": True, "false": False, "yes": True, "no": False},
}
"""What the column of a label may hold."""
DIGITS = 6
"""Significant digits of a probability: what float32 is worth."""


class MultiLabel(Kind):
    """A set of the labels of the task, which may be empty: all whose probability reaches their threshold."""

    name = "multilabel"
    fields = (*TEXT, *TEXTS, "labels")
    truth = "labels"
    labelled = True
    blank = True
    problem_type = "multi_label_classification"
    independent = True
    metric = "micro_f1"
    unscored = ()
    predicted = "labels"
    calibrated = True
    meaning = "any number of labels for a text or a pair of texts"
    answer = "all of the labels below that fit a text or a pair of texts"
    no_page = ""

    @property
    def one_label(self) -> bool:
        """Return that an example has any number of them."""
        return False

    def label_columns(self, values: Mapping[str, Any], labels: Sequence[str] | None) -> tuple[str, ...]:
        """Return the columns that bear the names of all labels, else those that hold 0 or 1, if there are several."""
        if labels and all(label in values for label in labels):
            return tuple(labels)
        found = tuple(name for name, value in values.items() if _yes(value) is not None)
        return found if len(found) > 1 else ()

    def read_truth(self, value: Any, example: Example, labels: LabelReader) -> list[str]:
        """Return the names, sorted: of a list, a text with ``SEPARATORS``, or labels with 0 or 1.

        A list of as many 0 and 1 as there are labels, when these are known, says so of each of them in their order.
        """
        del example
        if isinstance(value, str):
            value = _separated(value, labels.allowed or ())
        if isinstance(value, Mapping):
            value = [name for name, one in value.items() if _named_yes(name, one)]
        if not isinstance(value, list | tuple):
            raise BadItemError(f"'labels' must be a list, a text with commas, or 0 and 1 by label, not {shown(value)}")
        if _is_row_of_yes_no(value, labels.allowed):
            value = [name for name, one in zip(labels.allowed or (), value, strict=True) if one]
        names = [labels.label(one) for one in value]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise BadItemError(
                f"'labels' names {shown(twice)} twice; a row of 0 and 1 needs their names, in order, as labels: [...]"
            )
        return sorted(names)

    def labels_in(self, truth: Any) -> Iterable[str]:
        """Return the labels of the set."""
        return truth  # type: ignore[no-any-return]

    def fits_head(self, labels: Sequence[str], problem_type: str | None) -> bool:
        """Return whether the config says that every output is a question of its own."""
        del labels
        return problem_type == self.problem_type

    def thresholds(self, labels: Sequence[str]) -> int:
        """Return one for each label."""
        return len(labels)

    def one_answer(self, settings: Reads, logits: Array) -> Answer:
        """Return ``labels`` from their thresholds up, in the order of their ids, and ``probabilities`` of all."""
        there = _margins(settings, logits) >= 0
        answered = [label for label, yes in zip(settings.labels, there, strict=True) if yes]
        chances = (float(f"{chance:.{DIGITS}g}") for chance in sigmoid(logits).tolist())
        return {"labels": answered, "probabilities": dict(zip(settings.labels, chances, strict=True))}

    def regret(self, settings: Reads, feature: Feature, expected: Array, found: Array) -> Array:
        """Return one number: how far from its threshold the surest label is that is answered otherwise."""
        del feature
        own, other = _margins(settings, expected), _margins(settings, found)
        return np.array([np.abs(own[(own >= 0) != (other >= 0)]).max(initial=0.0)])

    def turned(
        self, labels: Sequence[str], before: Mapping[str, Any], now: Mapping[str, Any], output: Array
    ) -> Array | None:
        """Return how far apart the log-odds of labels are that are answered otherwise; a threshold is between them."""
        turned = sorted({*before["labels"]} ^ {*now["labels"]})
        if not turned or any(label not in answer["probabilities"] for label in turned for answer in (before, now)):
            return None
        sides = (np.array([answer["probabilities"][label] for label in turned]) for answer in (before, now))
        with np.errstate(divide="ignore"):
            odds = [np.log(chances) - np.log1p(-chances) for chances in sides]
        return np.asarray(np.abs(odds[0] - odds[1]))

    def metrics(self) -> tuple[Metric, ...]:
        """F1 over all labels together and as their mean, the mean average precision, and the share of equal sets."""
        return (
            Metric("micro_f1", scorers.from_counts(label_sets.set_counts, scorers.f1)),
            Metric("macro_f1", label_sets.macro_f1),
            Metric("average_precision", label_sets.average_precision),
            Metric("subset_accuracy", label_sets.subset_accuracy, proportion=True),
        )

    def values(self, spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> Values:
        """Return 1 for each equal set if their share is the metric, else the F1 of each set."""
        if spec.metric == "subset_accuracy":
            return label_sets.equal_sets(answers, examples)
        return label_sets.set_f1(spec, answers, examples)

    def confidences(self, answers: Sequence[Answer], examples: Sequence[Example]) -> tuple[list[float], list[bool]]:
        """Return the probability of every label of every example, and whether it is one of the example's."""
        chances = [chance for answer in answers for chance in answer["probabilities"].values()]
        pairs = zip(answers, examples, strict=True)
        return chances, [label in example["labels"] for answer, example in pairs for label in answer["probabilities"]]

    def agreement(self, pairs: Sequence[tuple[Answer, Answer]]) -> dict[str, float]:
        """Return ``sets``, the share of equal sets, and ``labels``, that of equal answers to single labels."""
        sides = [(set(a["labels"]), set(b["labels"]), len(a["probabilities"])) for a, b in pairs]
        asked = sum(count for _, _, count in sides)
        unlike = sum(len(a ^ b) for a, b, _ in sides)
        return {"sets": scorers.share(a == b for a, b, _ in sides), "labels": 1 - unlike / asked if asked else math.nan}

    def said(self, answer: Answer, example: Example) -> str:
        """Return the labels of a set."""
        del example
        return ", ".join(answer["labels"] if "labels" in answer else answer["truth"]) or "(none)"

    def chosen_thresholds(
        self, spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]
    ) -> tuple[float, ...]:
        """Return for each label the probability that gives it the best F1; 0.5 where none of the examples has it."""
        true = np.array([[label in example["labels"] for label in spec.labels] for example in examples])
        chances = np.array([[answer["probabilities"][label] for label in spec.labels] for answer in answers])
        return best_thresholds(chances, true)

    def target(self, spec: Asks, feature: Feature, example: Example, left: bool) -> list[float]:
        """Return 1 for each label of the set and 0 for the others, NaN without a truth."""
        del feature, left
        if "labels" not in example:
            return [math.nan] * len(spec.labels)
        return [float(label in example["labels"]) for label in spec.labels]

    def padded(
        self, targets: Sequence[Any], places: Sequence[slice], length: int, inputs: Sequence[int]
    ) -> dict[str, Array]:
        """Return ``labels`` ``[rows, C]``."""
        del places, length, inputs
        return {"labels": np.array(targets, dtype=np.float32)}

    def loss(self, spec: Asks, logits: Tensor, targets: Mapping[str, Tensor], mask: Tensor) -> Tensor:
        """Return the binary cross-entropy, the mean over labels and rows; ``class_weights`` weigh the labels' yes."""
        from torch.nn import functional

        del mask
        labels = targets["labels"]
        known = ~labels[:, 0].isnan()
        if not bool(known.any()):
            return logits.sum() * 0.0
        weights = None if spec.class_weights is None else logits.new_tensor(spec.class_weights)
        return functional.binary_cross_entropy_with_logits(logits[known], labels[known], pos_weight=weights)

    def counted(self, spec: Asks, labels: Tensor) -> Tensor:
        """Return how many rows have a truth."""
        del spec
        return (~labels[:, 0].isnan()).sum()

    def combined(self, members: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
        """Return the log-odds of the weighted mean of the probabilities."""
        from torch.nn import functional

        del mask
        yes, no = (functional.logsigmoid(sign * members) + weights.log() for sign in (1, -1))
        return yes.logsumexp(dim=0) - no.logsumexp(dim=0)


def sigmoid(logits: Array) -> Array:
    """Return ``1 / (1 + exp(-x))`` in float64."""
    values = np.asarray(logits, dtype=np.float64)
    small = np.exp(-np.abs(values))
    return np.asarray(np.where(values >= 0, 1.0, small) / (1.0 + small))


def _margins(settings: Reads, logits: Array) -> Array:
    """Return by how much the log-odds of each label lie above those of its threshold, ``[C]``."""
    if not settings.thresholds:
        return logits
    chances = np.array(settings.thresholds, dtype=np.float64)
    return np.asarray(logits - np.log(chances / (1 - chances)))


def _separated(text: str, known: Sequence[str]) -> Any:
    """Return the labels in a text: one alone, several with a separator, or a list as ``written_list`` reads it."""
    text = text.strip()
    if not text or text in known:
        return [text] if text else []
    if (found := written_list(text)) is not None:
        return found
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1]
    separator = next((one for one in SEPARATORS if one in text), None)
    return [part.strip() for part in text.split(separator) if part.strip()] if separator else [text]


def _yes(value: Any) -> bool | None:
    """Return whether a value says yes; None if it says neither yes nor no."""
    if isinstance(value, str):
        return YES_NO.get(value.strip().lower())
    return YES_NO.get(value) if isinstance(value, int | float) else None


def _named_yes(name: Any, value: Any) -> bool:
    found = _yes(value)
    if found is None:
        raise BadItemError(
            f"{str(name)!r} was taken for a label, and must be 0 or 1, not {shown(value)}; name the labels with "
            "labels: [...] if it is none"
        )
    return found


def _is_row_of_yes_no(value: Sequence[Any], known: Sequence[str] | None) -> bool:
    if not known or len(value) != len(known) or {"0", "1"} & set(known):
        return False
    return all(isinstance(one, int | float) and one in (0, 1) for one in value)
