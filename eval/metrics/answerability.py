"""The scores of questions that may have no answer, as the official script of SQuAD 2.0 counts them.

A question without an answer expects an empty one. Expected answers of which no word counts are passed over.

Source: Rajpurkar, Jia, Liang 2018, arXiv 1806.03822 (``evaluate-v2.0.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from eval.examples import Answer, Asks, Example
from eval.metrics.answer_overlap import answer_words
from eval.metrics.scorers import Indices, Prepare, Scorer, Values, best_scores, mean

Overlap = Callable[[str, str], float]
"""Answered and expected text -> how alike they are, 0 to 1."""


def scores(overlap: Overlap, answers: Sequence[Answer], examples: Sequence[Example]) -> Values:
    """Return the score of each question, ``[N]``."""
    worded = [{"answers": [one for one in example["answers"] if answer_words(one["text"])]} for example in examples]
    return best_scores(overlap, answers, worded)


def over_all(overlap: Overlap) -> Prepare:
    """Return the mean over all questions as a metric."""

    def prepare(spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> Scorer:
        del spec
        return mean(scores(overlap, answers, examples))

    return prepare


def over_those(overlap: Overlap, has_answer: bool) -> Prepare:
    """Return the mean over the questions that have an answer, or over those that have none; 0 without any."""

    def prepare(spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> Scorer:
        del spec
        values = scores(overlap, answers, examples)
        counted = np.array([bool(example["answers"]) == has_answer for example in examples])

        def score(indices: Indices) -> float:
            chosen = indices[counted[indices]]
            return float(values[chosen].mean()) if len(chosen) else 0.0

        return score

    return prepare
