"""Multiple choice: which of several texts fits another, as in SWAG and RACE.

Every choice is an input for itself, read together with its text; only what compares the choices of an example, a loss
or a prediction, joins their scores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from eval.examples import IGNORED, Answer, Array, Asks, Example, Feature, Reads
from eval.files.rows import Row
from eval.kinds.choice_formats import choice_rows
from eval.kinds.kind import Kind
from eval.kinds.reading import softmax
from eval.kinds.values import BadItemError, LabelReader, shown
from eval.metrics import scorers
from eval.metrics.scorers import Metric, Values

if TYPE_CHECKING:
    from torch import Tensor

IMPOSSIBLE = -float("inf")
"""Score of a choice that an example lacks: it has no probability, at any temperature and in any number format."""


class MultipleChoice(Kind):
    """The place of the right choice, by a softmax over the scores of all."""

    name = "multiple-choice"
    fields = ("text", "choices", "label")
    lists = {"choices": 2}  # noqa: RUF012 (never changed)
    truncation = "only_first"
    no_augment = "is not augmented; other words may make another choice right"
    pairs = False
    several = True
    joined = True
    auto_class = "AutoModelForMultipleChoice"
    second_segment = True
    metric = "accuracy"
    predicted = "label"
    calibrated = True
    meaning = "the one of several endings or answers that fits a text"
    answer = "the place, from 0, of the choice that fits its text best"
    line = "a text and its choices with tabs between them, or a JSON object with `text` and `choices`"
    pipeline = "multiple-choice"
    no_page = "its page takes one text or two, not a list of choices"

    def given(self, pair: bool) -> tuple[str, ...]:
        """Return the fields of the text and its choices."""
        del pair
        return ("text", "choices")

    def form(self, example: Example) -> None:
        """Return None: there is one form alone."""
        del example

    def rows(self, rows: Iterable[Row]) -> Iterable[Row]:
        """Understand rows of SWAG and RACE."""
        return choice_rows(rows)

    def read_truth(self, value: Any, example: Example, labels: LabelReader) -> int:
        """Return the place of the right choice from 0; a letter from A counts as its place in the alphabet."""
        del labels
        return _place(value, len(example["choices"]))

    def read_line(self, line: str, fields: Sequence[str]) -> dict[str, Any]:
        """Return a text and its choices, with tabs between them."""
        del fields
        text, *choices = line.split("\t")
        if len(choices) < 2:
            raise ValueError("expected text, one tab, and choices with tabs between them, or a JSON object with both")
        return {"text": text, "choices": choices}

    def probe(self, text: str, pair: bool) -> dict[str, Any]:
        """Return any text with three choices."""
        del pair
        return {"text": text, "choices": [text[::-1], text[:60], "a"]}

    def outputs(self, labels: Sequence[str]) -> int:
        """Return 1, the score of a choice."""
        del labels
        return 1

    def reads_pairs(self, pair: bool) -> bool:
        """Return that a text is read with a choice."""
        del pair
        return True

    def parts(self, example: Example, pair: bool) -> list[Any]:
        """Return the text with each choice."""
        del pair
        return [(example["text"], choice) for choice in example["choices"]]

    def decode(
        self, settings: Reads, examples: Sequence[Example], features: Sequence[Feature], outputs: Sequence[Array]
    ) -> tuple[list[Answer], list[Array]]:
        """Return the place of a choice as ``label`` with its ``probability``, and the scores ``[choices]``."""
        del settings
        scores: list[list[float]] = [[] for _ in examples]
        for feature, output in zip(features, outputs, strict=True):
            scores[feature.example].append(float(output[0]))
        logits = [np.array(row, dtype=np.float32) for row in scores]
        answers: list[Answer] = []
        for probabilities in map(softmax, logits):
            best = int(probabilities.argmax())
            answers.append({"label": best, "probability": float(probabilities[best])})
        return answers, logits

    def metrics(self) -> tuple[Metric, ...]:
        """The share of right choices."""
        return (Metric("accuracy", scorers.accuracy, proportion=True),)

    def values(self, spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> Values:
        """Return 1 for each right choice, else 0."""
        del spec
        return scorers.right_labels(answers, examples)

    def agreement(self, pairs: Sequence[tuple[Answer, Answer]]) -> dict[str, float]:
        """Return ``labels``, the share of equal choices."""
        return {"labels": scorers.share(a["label"] == b["label"] for a, b in pairs)}

    def said(self, answer: Answer, example: Example) -> str:
        """Return the place of a choice, with its text where that is known."""
        place = int(super().said(answer, example))
        return f"{place}: {example['choices'][place]}" if example else str(place)

    def target(self, spec: Asks, feature: Feature, example: Example, left: bool) -> Any:
        """Return the place of the right choice, ``IGNORED`` without one."""
        del spec, feature, left
        return example.get("label", IGNORED)

    def padded(
        self, targets: Sequence[Any], places: Sequence[slice], length: int, inputs: Sequence[int]
    ) -> dict[str, Array]:
        """Return ``labels`` and ``choices``, their number, ``[examples]``."""
        del places, length
        return {"labels": np.array(targets), "choices": np.array(inputs)}

    def loss(self, spec: Asks, logits: Tensor, targets: Mapping[str, Tensor], mask: Tensor) -> Tensor:
        """Return the cross-entropy over the choices of each example."""
        return super().loss(spec, joined_choices(logits, targets["choices"]), targets, mask)

    def soft_pairs(
        self,
        student: Tensor,
        teacher: Tensor,
        targets: Mapping[str, Tensor],
        mask: Tensor,
        only_predicted: bool = False,
    ) -> list[tuple[Tensor, Tensor]]:
        """Return one pair of ``[examples, choices]``."""
        del mask, only_predicted
        counts = targets["choices"]
        return [(joined_choices(student, counts), joined_choices(teacher, counts))]

    def combined(self, members: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
        """Return the weighted mean of the scores."""
        del mask
        return (weights * members).sum(dim=0)


def joined_choices(scores: Tensor, counts: Tensor) -> Tensor:
    """Return the scores of each example's choices side by side, ``[examples, most choices]``.

    Args:
        scores: Scores of all choices, example after example, ``[choices, 1]``.
        counts: How many choices each example has, ``[examples]``; places beyond them get ``IMPOSSIBLE``.
    """
    import torch

    there = torch.arange(int(counts.max()), device=counts.device) < counts[:, None]
    return scores.new_full(there.shape, IMPOSSIBLE).masked_scatter(there, scores)


def _place(value: Any, choices: int) -> int:
    if isinstance(value, str):
        letter = len(value) == 1 and "A" <= value <= "Z"
        value = ord(value) - ord("A") if letter else int(value) if _short_number(value) else value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < choices:
        raise BadItemError(
            f"'label' must be the place of one of the {choices} choices, 0 to {choices - 1} or a letter from A, "
            f"not {shown(value)}"
        )
    return value


def _short_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10
