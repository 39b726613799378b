"""Extractive question answering where a question may have no answer in its context, as in SQuAD 2.0.

Source: Rajpurkar, Jia, Liang 2018, arXiv 1806.03822; the null score at the classifier token is that of Devlin et al.
2019, arXiv 1810.04805, section 4.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from eval.examples import Answer, Array, Asks, Example, Feature, Reads
from eval.kinds.qa import QuestionAnswering, answers_in, best_span
from eval.kinds.values import LabelReader
from eval.metrics import answerability, scorers
from eval.metrics.answer_overlap import exact_match, token_f1
from eval.metrics.null_threshold import best_null_threshold
from eval.metrics.scorers import Metric, Values


class QuestionAnsweringWithNull(QuestionAnswering):
    """The span, or nothing where the null score exceeds that of the best span by more than the threshold.

    The null score of a window is the sum of the start and the end logit of its classifier token, that of a question the
    least of its windows; 0 is the usual threshold.
    """

    name = "qa-with-null"
    unscored = ("start", "end", "score", "null_score", "candidate")
    chooses = True
    meaning = "a span of a context that answers a question, or that there is none"
    answer = "a span of the context that answers the question, or an empty text if there is none"
    no_page = QuestionAnswering.no_page

    def read_truth(self, value: Any, example: Example, labels: LabelReader) -> list[dict[str, Any]]:
        """Return a list of text and place; an empty one says that there is no answer."""
        del labels
        return answers_in(value, example["context"])

    def thresholds(self, labels: Sequence[str]) -> int:
        """Return 1."""
        del labels
        return 1

    def decode(
        self, settings: Reads, examples: Sequence[Example], features: Sequence[Feature], outputs: Sequence[Array]
    ) -> tuple[list[Answer], list[Array]]:
        """Return ``text``, ``start``, ``end``, ``score``, ``null_score``, ``candidate``; and both scores, ``[2]``.

        ``candidate`` is the best span whether it is answered or not, and ``score`` is that of it.
        """
        best, _ = super().decode(settings, examples, features, outputs)
        for answer in best:
            answer |= {"null_score": np.inf, "candidate": answer["text"]}
        for feature, output in zip(features, outputs, strict=True):
            answer = best[feature.example]
            answer["null_score"] = min(answer["null_score"], _null_score(settings, feature, output))
        for answer in best:
            if not answer["candidate"] or answer["null_score"] - answer["score"] > _threshold(settings):
                answer |= {"text": "", "start": 0, "end": 0}
        return best, [np.array([answer["score"], answer["null_score"]], dtype=np.float32) for answer in best]

    def regret(self, settings: Reads, feature: Feature, expected: Array, found: Array) -> Array:
        """Compare whether a window is answered, and where the reference does, the choices of a start and an end."""
        own, other = (_margin(settings, feature, output) for output in (expected, found))
        turned = np.array([abs(own) if (own > 0) != (other > 0) else 0.0])
        if own > 0:
            return turned
        return np.concatenate([turned, super().regret(settings, feature, expected, found)])

    def metrics(self) -> tuple[Metric, ...]:
        """The scores of SQuAD 2.0: over all questions, over those with an answer, and over those without one."""
        both = (("f1", token_f1), ("exact_match", exact_match))
        parts = (("has_answer", True), ("no_answer", False))
        return (
            *(Metric(name, answerability.over_all(score), proportion=score is exact_match) for name, score in both),
            *(
                Metric(f"{part}_{name}", answerability.over_those(score, has))
                for part, has in parts
                for name, score in both
            ),
        )

    def values(self, spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> Values:
        """Return the exact match (0 or 1) if that is the metric, else the F1; 1 where rightly nothing is answered."""
        return answerability.scores(exact_match if spec.metric == "exact_match" else token_f1, answers, examples)

    def agreement(self, pairs: Sequence[tuple[Answer, Answer]]) -> dict[str, float]:
        """Return ``texts``, the share of equal answer texts, and ``answered``, that of the same choice to answer."""
        same = scorers.share(bool(a["text"]) == bool(b["text"]) for a, b in pairs)
        return {**super().agreement(pairs), "answered": same}

    def chosen_thresholds(
        self, spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]
    ) -> tuple[float, ...]:
        """Return by how much the null score may exceed the best span's, where the task's metric is best."""
        candidates = [{"text": answer["candidate"]} for answer in answers]
        margins = np.array([answer["null_score"] - answer["score"] for answer in answers], dtype=np.float64)
        spans = self.values(spec, candidates, examples)
        nothing = self.values(spec, [{"text": ""}] * len(answers), examples)
        return (best_null_threshold(margins, spans, nothing),)

    def target(self, spec: Asks, feature: Feature, example: Example, left: bool) -> tuple[int, int]:
        """Return first and last token of the answer, the classifier token's place if there is none in this window."""
        if example["answers"]:
            return super().target(spec, feature, example, left)
        place = len(feature.ids) - 1 if left else 0
        return place, place


def _threshold(settings: Reads) -> float:
    return settings.thresholds[0] if settings.thresholds else 0.0


def _null_score(settings: Reads, feature: Feature, output: Array) -> float:
    return float(output[len(feature.ids) - 1 if settings.pad_side == "left" else 0].sum())


def _margin(settings: Reads, feature: Feature, output: Array) -> float:
    """Return by how much the null score of a window exceeds that of its best span beyond the threshold."""
    span = best_span(output[:, 0], output[:, 1], feature.offsets or [])
    return np.inf if span is None else _null_score(settings, feature, output) - span[0] - _threshold(settings)
