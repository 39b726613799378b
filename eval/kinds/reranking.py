"""Reranking: a cross-encoder reads a query with each of the documents that a first stage found, and sorts them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from eval.examples import Answer, Array, Asks, Example, Feature
from eval.kinds.ranked_documents import RANKED, RankedDocuments, Read, by_corpus, with_candidates
from eval.kinds.regression import Regression

LONGEST = 65_536
"""Characters of a query and of a document that are read; far more than any input holds."""
PAIRS = 4096
"""Pairs of texts that are encoded at a time."""


class Reranking(RankedDocuments, Regression):
    """One score for a query and a document, by which the first 100 documents of a first stage are sorted again.

    Training reads pairs of texts with the grade as label, and 0 for documents of the first stage that are not relevant.
    By itself, as for a latency or an export's gate, a query is one input: with the first of its documents.
    """

    name = "reranking"
    alike = ("regression",)
    predicted = ""
    meaning = "a score for a query and a document, by which the documents of a first stage are sorted"
    answer = "a score for a query and a document"

    def form(self, example: Example) -> bool | None:
        """Return that a query and a document are read together."""
        return True if "corpus" in example or "text_a" in example else None

    def arranged(self, spec: Asks, splits: Mapping[str, Sequence[Example]]) -> dict[str, Sequence[Example]]:
        """Give every query its candidates, and make pairs of the training queries; texts alone are left out."""
        return {
            name: self.query_pairs(spec, found) if name == "train" else found
            for name, found in ((name, with_candidates(split)) for name, split in splits.items())
            if found
        }

    def learnable(self, example: Example) -> bool:
        """Return whether an example is a pair with its grade."""
        return "label" in example

    def parts(self, example: Example, pair: bool) -> list[Any]:
        """Return the pair; of a query the one with its first candidate."""
        del pair
        if "corpus" not in example:
            return [(example["text_a"][:LONGEST], example["text_b"][:LONGEST])]
        names = example.get("candidates", ())
        return [(example["text"][:LONGEST], example["corpus"].text_of(names[0])[:LONGEST] if names else "")]

    def before_any_model(self, examples: Sequence[Example]) -> list[Answer]:
        """Return the documents in the order of the first stage."""
        names = [example["candidates"] for example in examples]
        return [self.answer_of(own, -np.arange(len(own))) for own in names]

    def completed(
        self, examples: Sequence[Example], answers: Sequence[Answer], outputs: Sequence[Array], read: Read
    ) -> list[Answer]:
        """Score the candidates of every query and sort them; as many queries at a time as have ``PAIRS`` of them."""
        from eval.progress.stages import one_by_one
        from eval.ranking.best import largest

        del outputs
        found, places = list(answers), [place for _, own in by_corpus(examples) for place in own]
        step = max(1, PAIRS // RANKED)
        for first in one_by_one(range(0, len(places), step), "reranking"):
            held = places[first : first + step]
            scores = np.concatenate([np.zeros(0), *read([pair for place in held for pair in _pairs(examples[place])])])
            for place in held:
                names = examples[place]["candidates"]
                own, scores = scores[: len(names)], scores[len(names) :]
                order = largest(own, RANKED)
                found[place] = self.answer_of([names[i] for i in order], own[order])
        return found

    def target(self, spec: Any, feature: Feature, example: Example, left: bool) -> float:
        """Return the label of a pair; nothing is known of the first candidate of a query."""
        return super().target(spec, feature, {} if "corpus" in example else example, left)


def _pairs(example: Example) -> list[Example]:
    corpus = example["corpus"]
    names = example.get("candidates", ())
    return [{"text_a": example["text"], "text_b": corpus.text_of(name)} for name in names]
