"""Classification: one of several labels for a text or a pair of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eval.examples import IGNORED, Answer, Asks, Example, Feature
from eval.kinds.kind import Kind
from eval.kinds.values import LabelReader
from eval.metrics import scorers
from eval.metrics.scorers import Metric, Values


class Classification(Kind):
    """One of the labels of the task."""

    name = "classification"
    labelled = True
    problem_type = "single_label_classification"
    metric = "accuracy"
    predicted = "label"
    calibrated = True
    meaning = "one label for a text or a pair of texts"
    answer = "one of the labels below for a text or a pair of texts"
    web_pipeline = "text-classification"
    no_page = ""

    def read_truth(self, value: Any, example: Example, labels: LabelReader) -> str:
        """Return the name of the label."""
        del example
        return labels.label(value)

    def fits_head(self, labels: Sequence[str], problem_type: str | None) -> bool:
        """Return whether there is something to choose from: a head with one output is one of regression."""
        return len(labels) != 1 and problem_type in (None, self.problem_type)

    def metrics(self) -> tuple[Metric, ...]:
        """Accuracy and what is computed from the confusion table; f1 is that of the last of two labels."""
        return (
            Metric("accuracy", scorers.accuracy, proportion=True),
            Metric("macro_f1", scorers.from_confusion(scorers.macro_f1)),
            Metric("f1", scorers.from_counts(scorers.binary_counts, scorers.f1)),
            Metric("matthews", scorers.from_confusion(scorers.matthews)),
        )

    def unfit(self, metric: str, spec: Asks) -> str | None:
        """Say why f1 cannot be computed."""
        if metric == "f1" and spec.labels and len(spec.labels) != 2:
            return f"'f1' is for two labels (the last is the positive one), here are {len(spec.labels)}; use macro_f1"
        return None

    def values(self, spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> Values:
        """Return 1 for each right label, else 0."""
        del spec
        return scorers.right_labels(answers, examples)

    def agreement(self, pairs: Sequence[tuple[Answer, Answer]]) -> dict[str, float]:
        """Return ``labels``, the share of equal labels."""
        return {"labels": scorers.share(a["label"] == b["label"] for a, b in pairs)}

    def target(self, spec: Asks, feature: Feature, example: Example, left: bool) -> int:
        """Return the id of the label, ``IGNORED`` without one."""
        del feature, left
        return spec.labels.index(example["label"]) if "label" in example else IGNORED
