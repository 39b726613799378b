"""Masked language modelling: the hidden words of unlabelled text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from eval.examples import Answer, Array, Asks, Example, Feature, Reads
from eval.kinds.language.language_model import LanguageModel
from eval.metrics import scorers
from eval.metrics.scorers import Metric, Values


class MaskedLanguage(LanguageModel):
    """The token behind each mask; ``teachers.data.encoded_dataset`` draws the masks, which are the targets."""

    name = "masked-lm"
    masks = True
    scored = False
    auto_class = "AutoModelForMaskedLM"
    metric = "masked_accuracy"
    meaning = "unlabelled text; the result is a smaller base to fine-tune later"
    answer = "the token behind a mask"
    line = "not available from the command line: `Runtime.forward` gives the logits"
    longer = "a window; longer paragraphs are cut into windows"
    pipeline = "fill-mask"
    no_page = "it has no answer to show"
    unlisted = "it answers what is hidden, which is drawn by chance"

    def metrics(self) -> tuple[Metric, ...]:
        """Over masked tokens; perplexity is only reported."""
        return (
            Metric("masked_accuracy", scorers.masked_accuracy),
            Metric("perplexity", scorers.perplexity, decides=False),
        )

    def decode(
        self, settings: Reads, examples: Sequence[Example], features: Sequence[Feature], outputs: Sequence[Array]
    ) -> tuple[list[Answer], list[Array]]:
        """Return answers that say nothing, and the logits of all tokens of each text, ``[tokens, vocabulary]``."""
        del settings
        parts: list[list[Array]] = [[] for _ in examples]
        for feature, output in zip(features, outputs, strict=True):
            parts[feature.example].append(output)
        return [{} for _ in examples], [np.concatenate(windows) for windows in parts]

    def values(self, spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> Values:
        """Return the share of the masked tokens of each text that are right, 0 where none was masked."""
        del spec, examples
        total = scorers.column(answers, "total")
        return np.divide(scorers.column(answers, "correct"), total, out=np.zeros(len(answers)), where=total > 0)

    def target(self, spec: Asks, feature: Feature, example: Example, left: bool) -> None:
        """Return None: masks are drawn batch by batch."""
        del spec, feature, example, left
