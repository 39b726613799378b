"""Extractive question answering: a span of a context that answers a question, as in SQuAD."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from eval.examples import Answer, Array, Asks, Example, Feature, Reads
from eval.kinds.kind import Kind
from eval.kinds.values import BadItemError, LabelReader, group_name, shown
from eval.metrics import scorers
from eval.metrics.answer_overlap import exact_match, token_f1
from eval.metrics.scorers import Metric, Values

if TYPE_CHECKING:
    from torch import Tensor

LONGEST_ANSWER = 30
"""Most tokens of an extracted answer, as in the SQuAD scripts of BERT (Devlin et al. 2019)."""


class QuestionAnswering(Kind):
    """The start and the end of the answer in the context, each a choice among its tokens."""

    name = "qa"
    fields = ("id", "question", "context", "answers")
    truth = "answers"
    optional_truth = False
    unscored: tuple[str, ...] = ("start", "end", "score")
    max_length = 384
    stride = 128
    no_augment = "is not augmented; its answers are places in the context, which would move"
    pairs = False
    per_token = True
    half = True
    auto_class = "AutoModelForQuestionAnswering"
    graph_outputs = ("start_logits", "end_logits")
    second_segment = True
    metric = "f1"
    predicted = "text"
    meaning = "a span of a context that answers a question"
    answer = "a span of the context that answers the question"
    line = "a question, a tab and its context, or a JSON object with `question` and `context`"
    longer = "a window; longer contexts are cut into windows"
    pipeline = "question-answering"
    no_page = "the tokenizer that runs there does not tell where in the text a token stands"

    @property
    def gold(self) -> tuple[str, ...]:
        """Keep the id of a question too."""
        return ("id", "answers")

    def given(self, pair: bool) -> tuple[str, ...]:
        """Return the fields of the two texts."""
        del pair
        return ("question", "context")

    def perturbed(self, example: Example) -> tuple[str, ...]:
        """Return the question alone: answers are places in the context."""
        del example
        return ("question",)

    def inputs(self, values: Mapping[str, Any]) -> tuple[str, ...]:
        """Ask for an id in data."""
        del values
        return ("id", "question", "context")

    def form(self, example: Example) -> None:
        """Return None: there is one form alone."""
        del example

    def group_of(self, example: Example) -> str:
        """Return the paragraph, by its text; its questions are easy or hard together."""
        return group_name(example["context"])

    def read_truth(self, value: Any, example: Example, labels: LabelReader) -> list[dict[str, Any]]:
        """Return a list of text and place; the datasets library's form (two parallel lists) is understood."""
        del labels
        found = answers_in(value, example["context"])
        if not found:
            raise BadItemError("has no answer; kind: qa-with-null reads such questions, on_bad: skip leaves them out")
        return found

    def probe(self, text: str, pair: bool) -> dict[str, Any]:
        """Ask the beginning of a text of all of it."""
        del pair
        return {"question": text[:60], "context": text}

    def outputs(self, labels: Sequence[str]) -> int:
        """Return 2, for start and end."""
        del labels
        return 2

    def parts(self, example: Example, pair: bool) -> list[Any]:
        """Return question and context."""
        del pair
        return [(example["question"], example["context"])]

    def truncates(self, settings: Reads, room: Callable[[int], int]) -> tuple[int, str]:
        """Let a window have the places that the longest question leaves; it must move on by one at least."""
        return min(settings.stride, room(2) - room(2) // 2 - 1), "only_second"

    def mark(self, feature: Feature, example: Example, encoding: Any, first: bool) -> None:
        """Write down where in the context each token stands."""
        del first
        context = example["context"]
        pairs = zip(encoding.sequence_ids, encoding.offsets, strict=True)
        feature.offsets = [_trimmed(context, *offset) if sequence == 1 else None for sequence, offset in pairs]

    def decode(
        self, settings: Reads, examples: Sequence[Example], features: Sequence[Feature], outputs: Sequence[Array]
    ) -> tuple[list[Answer], list[Array]]:
        """Return ``text``, ``start``, ``end`` and ``score``, and ``[1]``, the score of the best span of all windows."""
        del settings
        best: list[Answer] = [{"text": "", "start": 0, "end": 0, "score": -np.inf} for _ in examples]
        for feature, output in zip(features, outputs, strict=True):
            found = best_span(output[:, 0], output[:, 1], feature.offsets or [])
            if found is not None and found[0] > best[feature.example]["score"]:
                score, start, end = found
                text = examples[feature.example]["context"][start:end]
                best[feature.example] = {"text": text, "start": start, "end": end, "score": float(score)}
        for answer in best:
            if answer["score"] == -np.inf:  # an empty context: no place for an answer
                answer["score"] = 0.0
        return best, [np.array([answer["score"]], dtype=np.float32) for answer in best]

    def regret(self, settings: Reads, feature: Feature, expected: Array, found: Array) -> Array:
        """Compare the choices of a start and of an end inside the context."""
        places = [place for place, offset in enumerate(feature.offsets or ()) if offset is not None]
        return super().regret(settings, feature, expected[places].T, found[places].T)

    def metrics(self) -> tuple[Metric, ...]:
        """The scores of SQuAD: the best over the expected answers."""
        return (
            Metric("f1", scorers.over_questions(token_f1)),
            Metric("exact_match", scorers.over_questions(exact_match), proportion=True),
        )

    def expected(self, example: Example) -> list[str]:
        """Return the texts that are right."""
        return [answer["text"] for answer in example["answers"]]

    def values(self, spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> Values:
        """Return the exact match (0 or 1) if that is the metric, else the F1."""
        return scorers.best_scores(exact_match if spec.metric == "exact_match" else token_f1, answers, examples)

    def agreement(self, pairs: Sequence[tuple[Answer, Answer]]) -> dict[str, float]:
        """Return ``texts``, the share of equal answer texts."""
        return {"texts": scorers.share(a["text"] == b["text"] for a, b in pairs)}

    def said(self, answer: Answer, example: Example) -> str:
        """Return the text of an answer, or those that are expected."""
        expected = answer.get("truth")
        texts = [answer["text"]] if expected is None else [one["text"] for one in expected]
        return " / ".join(dict.fromkeys(texts)) or "(nothing)"

    def target(self, spec: Asks, feature: Feature, example: Example, left: bool) -> tuple[int, int]:
        """Return first and last token of the answer, the classifier token's place if it is not in this window."""
        del spec
        answer = example["answers"][0]
        start, end = answer["answer_start"], answer["answer_start"] + len(answer["text"])
        classifier = len(feature.ids) - 1 if left else 0
        return token_span(feature.offsets or [], start, end) or (classifier, classifier)

    def padded(
        self, targets: Sequence[Any], places: Sequence[slice], length: int, inputs: Sequence[int]
    ) -> dict[str, Array]:
        """Return ``start_positions`` and ``end_positions`` ``[rows]``."""
        del length, inputs
        first = np.array([place.start for place in places])
        spans = np.array(targets) + first[:, None]
        return {"start_positions": spans[:, 0], "end_positions": spans[:, 1]}

    def loss(self, spec: Asks, logits: Tensor, targets: Mapping[str, Tensor], mask: Tensor) -> Tensor:
        """Return the mean of the cross-entropies of start and end, over the tokens that are no padding."""
        import torch
        from torch.nn import functional

        del spec
        scores = logits.masked_fill(mask[..., None] == 0, torch.finfo(logits.dtype).min)
        start = functional.cross_entropy(scores[..., 0], targets["start_positions"])
        return (start + functional.cross_entropy(scores[..., 1], targets["end_positions"])) / 2

    def soft_pairs(
        self,
        student: Tensor,
        teacher: Tensor,
        targets: Mapping[str, Tensor],
        mask: Tensor,
        only_predicted: bool = False,
    ) -> list[tuple[Tensor, Tensor]]:
        """Return two pairs ``[B, L]``: the start and the end."""
        del targets, only_predicted
        padding, never = mask[..., None] == 0, -float("inf")
        student, teacher = student.masked_fill(padding, never), teacher.masked_fill(padding, never)
        return [(student[..., side], teacher[..., side]) for side in (0, 1)]

    def combined(self, members: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
        """Return the log of the mean of the probabilities over the tokens."""
        import torch

        padding = mask[..., None] == 0
        logs = members.masked_fill(padding, -torch.inf).log_softmax(dim=2) + weights.log()
        return torch.logsumexp(logs, dim=0).masked_fill(padding, torch.finfo(members.dtype).min / 4)


def best_span(
    start_logits: Array, end_logits: Array, offsets: Sequence[tuple[int, int] | None]
) -> tuple[float, int, int] | None:
    """Return (score, first character, last character + 1) of the best answer span inside the context, or None.

    The best is the span of at most ``LONGEST_ANSWER`` tokens with the largest sum of its start and end logit; among
    equals the shortest, then the first.

    Args:
        start_logits: ``[tokens]``.
        end_logits: ``[tokens]``.
        offsets: Characters of each token in the context, None outside of it.
    """
    inside = np.array([offset is not None for offset in offsets], dtype=bool)
    starts = np.where(inside, start_logits, -np.inf)
    ends = np.where(inside, end_logits, -np.inf)
    best: tuple[float, int, int] | None = None
    for further in range(min(LONGEST_ANSWER, len(offsets))):
        scores = starts[: len(starts) - further] + ends[further:]
        start = int(scores.argmax())
        first, last = offsets[start], offsets[start + further]
        if first is not None and last is not None and (best is None or scores[start] > best[0]):
            best = (float(scores[start]), first[0], last[1])
    return best


def token_span(offsets: Sequence[tuple[int, int] | None], start: int, end: int) -> tuple[int, int] | None:
    """Return the first and last token that cover the characters ``start`` to ``end``, or None if some lie outside."""
    covering = [i for i, span in enumerate(offsets) if span and span[0] < end and span[1] > start]
    if not covering:
        return None
    first, last = offsets[covering[0]], offsets[covering[-1]]
    if first is None or last is None or first[0] > start or last[1] < end:
        return None
    return covering[0], covering[-1]


def _trimmed(text: str, start: int, end: int) -> tuple[int, int] | None:
    """Return the range without outer white space, or None if nothing is left: byte-level pieces begin with a space."""
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return (start, end) if start < end else None


def answers_in(value: Any, context: str) -> list[dict[str, Any]]:
    """Return the answers that a field holds, each with its place; maybe none.

    Args:
        value: As it was read.
        context: The text that they stand in.

    Raises:
        BadItemError: They are of another form, or do not stand there.
    """
    if isinstance(value, dict) and isinstance(value.get("text"), list) and isinstance(value.get("answer_start"), list):
        if len(value["text"]) != len(value["answer_start"]):
            raise BadItemError("'answers' has texts and starts of different number")
        value = [{"text": t, "answer_start": s} for t, s in zip(value["text"], value["answer_start"], strict=True)]
    if not isinstance(value, list) or not all(isinstance(answer, dict) for answer in value):
        raise BadItemError(f"'answers' must be a list of {{text, answer_start}}, not {shown(value)}")
    answers = []
    for answer in value:
        text, start = answer.get("text"), answer.get("answer_start")
        if not isinstance(text, str) or isinstance(start, bool) or not isinstance(start, int) or not text:
            raise BadItemError(f"an answer must have a text and a whole number answer_start, not {shown(answer)}")
        there = context[start : start + len(text)] if start >= 0 else ""
        if there != text:
            raise BadItemError(f"the answer {shown(text)} does not stand at answer_start {start}; there is {there!r}")
        answers.append({"text": text, "answer_start": start})
    return answers
