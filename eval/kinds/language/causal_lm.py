"""Causal language modelling: each token of unlabelled text, predicted from those before it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from eval.examples import IGNORED, Answer, Array, Asks, Example, Feature, Reads
from eval.generation.generating import Generating
from eval.kinds.language.language_model import LanguageModel
from eval.metrics import scorers
from eval.metrics.correlation import pearson
from eval.metrics.scorers import Metric, Values

if TYPE_CHECKING:
    from torch import Tensor


class CausalLanguage(Generating, LanguageModel):
    """The next token, at every token.

    A text is scored by itself: the end-of-text token stands before it, as after the text before, and each of the text's
    own tokens is predicted once. A text longer than ``max_length`` is read in windows, of which each begins with the
    last ``stride`` tokens of the one before as context. Training reads all texts as one stream instead, with an
    end-of-text token after each, in blocks of ``max_length`` that do not stop where a text does (Radford et al. 2019);
    neighbouring blocks share one token, so each token is predicted once there too. Of thousands of tokens two are often
    as likely, so 98% of equal predictions are good enough for an 8-bit export: its perplexity is hardly another.
    """

    name = "causal-lm"
    causal = True
    auto_class = "AutoModelForCausalLM"
    metric = "next_token_accuracy"
    good_enough = 0.98
    max_length = 256
    stride = 64
    meaning = "unlabelled text, of which each token follows from those before; the result writes text"
    answer = "the next token; of a text it tells the loss"
    longer = "a window; longer texts are read in windows, and training packs texts into blocks"
    pipeline = "text-generation"
    no_page = "it has no answer to show"
    unlisted = "its answers are losses, of which no two are the same"

    def has_head(self, architecture: str) -> bool:
        """Return whether a class has the head; those of the first decoders have another name."""
        return architecture.endswith(("ForCausalLM", "LMHeadModel"))

    def decode(
        self, settings: Reads, examples: Sequence[Example], features: Sequence[Feature], outputs: Sequence[Array]
    ) -> tuple[list[Answer], list[Array]]:
        """Return what each text costs, and what ``kept`` gave of all its tokens, ``[tokens, 2]``.

        An answer is ``loss``, the sum over the text's tokens in nats; ``total``, their number; ``correct``, how many
        were the likeliest; ``words``, what white space separates; and ``bytes`` of the text in UTF-8.
        """
        del settings
        parts: list[list[Array]] = [[] for _ in examples]
        for feature, output in zip(features, outputs, strict=True):
            parts[feature.example].append(output)
        rows = [np.concatenate([np.zeros((0, 2), dtype=np.float32), *own]) for own in parts]
        answers: list[Answer] = [
            {
                "loss": float(own[:, 0].sum(dtype=np.float64)),
                "total": len(own),
                "correct": int(own[:, 1].sum()),
                "words": len(example["text"].split()),
                "bytes": len(example["text"].encode("utf-8", "replace")),
            }
            for own, example in zip(rows, examples, strict=True)
        ]
        return answers, rows

    def kept(self, feature: Feature, output: Array) -> Array:
        """Return for each token that a window predicts its loss in nats, and 1 if it was the likeliest, ``[n, 2]``."""
        first = feature.context or 1
        rows = np.asarray(output[first - 1 : len(feature.ids) - 1], dtype=np.float32)
        targets = np.asarray(feature.ids[first:], dtype=np.int64)
        places = np.arange(len(targets))
        shifted = rows - rows.max(axis=-1, keepdims=True, initial=-np.inf)
        losses = np.log(np.exp(shifted).sum(axis=-1, dtype=np.float64)) - shifted[places, targets]
        return np.stack([losses, rows.argmax(axis=-1) == targets], axis=-1).astype(np.float32)

    def metrics(self) -> tuple[Metric, ...]:
        """Over the tokens of all texts; perplexities and bits a byte are only reported, for there lower is better."""
        return (
            Metric("next_token_accuracy", scorers.masked_accuracy),
            Metric("likelihood", scorers.likelihood),
            Metric("perplexity", scorers.perplexity, decides=False),
            Metric("word_perplexity", scorers.word_perplexity, decides=False),
            Metric("bits_per_byte", scorers.bits_per_byte, decides=False),
        )

    def values(self, spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> Values:
        """Return the geometric mean of the probabilities of each text's tokens; 0 for a text without any."""
        del spec, examples
        losses, totals = scorers.column(answers, "loss"), scorers.column(answers, "total")
        return np.where(totals > 0, np.exp(-losses / np.maximum(totals, 1)), 0.0)

    def agreement(self, pairs: Sequence[tuple[Answer, Answer]]) -> dict[str, float]:
        """Return ``losses``, the correlation of the mean losses of texts."""
        means = [[one["loss"] / max(1, one["total"]) for one in side] for side in zip(*pairs, strict=True)]
        return {"losses": pearson(*map(np.array, means)) if means else float("nan")}

    def perturbed(self, example: Example) -> tuple[str, ...]:
        """Return nothing: another text would have other tokens to predict."""
        del example
        return ()

    def learned(self, features: Sequence[Feature], settings: Reads) -> list[Feature]:
        """Return the blocks of one stream of all texts; a block belongs to the example in which it begins.

        Args:
            features: The windows of all texts, in order.
            settings: Those of the encoder.
        """
        own = [feature.ids[(feature.context or 1) :] for feature in features]
        begins = [
            place == 0 or feature.example != features[place - 1].example for place, feature in enumerate(features)
        ]
        begin, end = [settings.beginning], [settings.end_id]
        between = end if begin == end else end + begin
        parts = [(between if first else []) + ids for first, ids in zip(begins, own, strict=True)]
        parts[:1] = [begin + ids for ids in own[:1]]
        stream = [*chain.from_iterable(parts), settings.end_id]
        owners = np.repeat([feature.example for feature in features], [len(part) for part in parts])
        step = settings.max_length - 1
        starts = range(0, max(1, len(stream) - 1), step) if features else ()
        return [
            Feature(int(owners[start]), ids, [0] * len(ids))
            for start in starts
            for ids in [stream[start : start + settings.max_length]]
        ]

    def target(self, spec: Asks, feature: Feature, example: Example, left: bool) -> list[int]:
        """Return the token after each, ``IGNORED`` at the last."""
        del spec, example, left
        return [*feature.ids[1:], IGNORED]

    def padded(
        self, targets: Sequence[Any], places: Sequence[slice], length: int, inputs: Sequence[int]
    ) -> dict[str, Array]:
        """Return the ids of the next tokens ``[B, L]``, ``IGNORED`` where there is none."""
        del inputs
        return self.padded_tokens(targets, places, length)

    def counted(self, spec: Asks, labels: Tensor) -> Tensor:
        """Return how many tokens are predicted."""
        del spec
        return (labels != IGNORED).sum()
