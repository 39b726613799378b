"""Sequence to sequence: a text is answered with another one, such as its translation or its summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from eval.examples import IGNORED, Answer, Array, Asks, Example, Feature
from eval.generation.beam_search import Writing, same_tokens
from eval.kinds.kind import Kind
from eval.kinds.values import BadItemError, LabelReader, plain_text, shown
from eval.metrics.scorers import Metric, Values

if TYPE_CHECKING:
    from torch import Tensor


class SequenceToSequence(Writing, Kind):
    """A text that is written token by token by a decoder, which reads what an encoder made of another text.

    Training shows the decoder the right beginning (teacher forcing) and asks for each next token, the one that ends the
    text included. A prediction is what is written from the start token on: the likeliest token each time, or the best
    text of a beam search. A source that is too long is truncated, and so is a target of training.
    """

    name = "seq2seq"
    writes = True
    pairs = False
    fields = ("source", "target", "references")
    truth = "target"
    optional_truth = False
    auto_class = "AutoModelForSeq2SeqLM"
    metric = "chrf"
    predicted = "text"
    no_augment = "needs the right text beside each new one; let a teacher write it: distill.sequence"
    meaning = "another text for a text: a translation, a summary"
    answer = "a text"
    line = "a text, or a JSON object with `source`"
    longer = "a source; what is longer is truncated"
    pipeline = "text2text-generation"
    no_page = "it writes text, which the page does not"

    def has_head(self, architecture: str) -> bool:
        """Return whether a class has the head; Marian's has a name of its own."""
        return architecture.endswith(("ForConditionalGeneration", "MTModel"))

    def given(self, pair: bool) -> tuple[str, ...]:
        """Return ``source``."""
        del pair
        return ("source",)

    def parts(self, example: Example, pair: bool) -> list[Any]:
        """Return the source."""
        del pair
        return [example["source"]]

    def expected_text(self, example: Example) -> str | None:
        """Return the target."""
        return example.get("target")

    @property
    def gold(self) -> tuple[str, ...]:
        """Further right texts, then the target."""
        return ("references", "target")

    def beside(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``references``, further right texts, where there are some."""
        if "references" not in values:
            return {}
        given = values["references"]
        if not isinstance(given, list):
            raise BadItemError(f"'references' must be a list of texts, not {shown(given)}")
        return {"references": [plain_text("references", text) for text in given]}

    def read_truth(self, value: Any, example: Example, labels: LabelReader) -> str:
        """Return the target."""
        del example, labels
        text = plain_text("target", value)
        if not text.strip():
            raise BadItemError("'target' must not be empty")
        return text

    def form(self, example: Example) -> None:
        """Return None: there is one form alone."""
        del example

    def probe(self, text: str, pair: bool) -> dict[str, Any]:
        """Return a source, and the same text from its end as the target."""
        del pair
        return {"source": text, "target": text[::-1] or "a"}

    def width(self, outputs: int, hidden_size: int, vocab_size: int) -> int:
        """Return the number of words."""
        del outputs, hidden_size
        return vocab_size

    def metrics(self) -> tuple[Metric, ...]:
        """Over all texts: chrF and BLEU, which sum counts, and three kinds of ROUGE, which are means."""
        from eval.metrics import text_overlap

        return (
            Metric("chrf", text_overlap.chrf),
            Metric("bleu", text_overlap.bleu),
            *(Metric(name, text_overlap.rouge(name)) for name in text_overlap.ROUGE),
        )

    def values(self, spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> Values:
        """Return the primary metric of each text alone; chrF for one of the user's own."""
        from eval.metrics import text_overlap

        if spec.metric in text_overlap.ROUGE:
            return text_overlap.rouge_values(spec.metric, answers, examples)
        alone = text_overlap.sentence_bleu if spec.metric == "bleu" else text_overlap.sentence_chrf
        return alone(answers, examples)

    def agreement(self, pairs: Sequence[tuple[Answer, Answer]]) -> dict[str, float]:
        """Return ``words``, how alike the words are in their order, and ``texts``, the share of the same texts."""
        if not pairs:
            return {"words": float("nan"), "texts": float("nan")}
        texts = [(one["text"], other["text"]) for one, other in pairs]
        alike = [same_tokens(one.split(), other.split()) for one, other in texts]
        return {"words": float(np.mean(alike)), "texts": float(np.mean([one == other for one, other in texts]))}

    def target(self, spec: Asks, feature: Feature, example: Example, left: bool) -> list[int]:
        """Return the tokens of the target."""
        del spec, example, left
        return list(feature.target or ())

    def padded(
        self, targets: Sequence[Any], places: Sequence[slice], length: int, inputs: Sequence[int]
    ) -> dict[str, Array]:
        """Return the ids of the tokens to be written ``[B, T]``, ``IGNORED`` after the last."""
        del places, length, inputs
        longest = max(map(len, targets), default=0)
        return self.padded_tokens(targets, [slice(len(target)) for target in targets], max(1, longest))

    def counted(self, spec: Asks, labels: Tensor) -> Tensor:
        """Return how many tokens are predicted."""
        del spec
        return (labels != IGNORED).sum()

    def soft_rows(self, targets: Mapping[str, Tensor], mask: Tensor, only_predicted: bool) -> Tensor:
        """Compare every token of the target (Kim and Rush 2016, arXiv 1606.07947: word-level distillation)."""
        del mask, only_predicted
        return targets["labels"] != IGNORED
