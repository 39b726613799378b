"""Retrieval: an embedder ranks all documents of a corpus by the cosine of their vectors with that of a query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from eval.examples import TEXT, TEXTS, Answer, Array, Example
from eval.kinds.embedding import Embedding
from eval.kinds.ranked_documents import RANKED, RankedDocuments, Read, by_corpus, relevant_pairs

CHUNK = 1024
"""Documents whose vectors are held at a time."""


class Retrieval(RankedDocuments, Embedding):
    """Vectors of queries and documents, read alone; predictions are rankings of the whole corpus by exact search.

    Training reads the texts of queries and documents, for a teacher's vectors; the pairs of a query and a document that
    is relevant to it are those of ``text_pairs``.
    """

    name = "retrieval"
    texts_alone = False
    alike = ("embedding",)
    meaning = "a vector for each text, by which documents are found for a query"
    answer = "a vector for a text; the documents for a query are those with the largest cosine"

    def form(self, example: Example) -> bool | None:
        """Return that queries are single texts; texts alone say nothing."""
        return False if "corpus" in example else None

    def parts(self, example: Example, pair: bool) -> list[Any]:
        """Return the text of a query or a document, or the two of a pair."""
        del pair
        return [example[field] for field in (TEXTS if TEXTS[0] in example else TEXT)]

    def completed(
        self, examples: Sequence[Example], answers: Sequence[Answer], outputs: Sequence[Array], read: Read
    ) -> list[Answer]:
        """Rank the documents of every query's corpus, of which ``CHUNK`` are held at a time."""
        from eval.progress.stages import one_by_one
        from eval.ranking.best import Best, unit

        found = list(answers)
        for corpus, places in by_corpus(examples):
            queries = unit(np.stack([outputs[place][0] for place in places]))
            best = Best(len(places), RANKED + 1)
            for first in one_by_one(range(0, len(corpus.texts), CHUNK), "reading documents"):
                documents = read([{"text": text} for text in corpus.texts[first : first + CHUNK]])
                best.add(queries @ unit(np.concatenate(documents)).T)
            for row, place in enumerate(places):
                name, text = examples[place]["id"], examples[place]["text"]
                others = [i for i, at in enumerate(best.places[row]) if not corpus.is_query(int(at), name, text)]
                ids = [corpus.ids[best.places[row][i]] for i in others]
                found[place] = self.answer_of(ids, best.scores[row][others])
        return found

    def text_pairs(self, examples: Sequence[Example]) -> list[Example]:
        """Return each query with each document that is relevant to it, its grade as label and the query as group."""
        return [
            {"text_a": query, "text_b": document, "label": grade, "group": example["id"]}
            for example in examples
            for query, document, grade in relevant_pairs(example)
        ]
