"""Retrieval: an embedder ranks all documents of a corpus by the cosine of their vectors with that of a query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from eval.examples import TEXT, TEXTS, Answer, Array, Example
from eval.kinds.embedding import Embedding
from eval.kinds.ranked_documents import RANKED, RankedDocuments, Read, by_corpus, relevant_pairs

if TYPE_CHECKING:
    from eval.ranking.document_set import Corpus
    from eval.ranking.vector_index import IndexForm

CHUNK = 1024
"""Documents whose vectors are held at a time."""


class Retrieval(RankedDocuments, Embedding):
    """Vectors of queries and documents, read alone; predictions are rankings of the whole corpus by exact search.

    Training reads the texts of queries and documents, for a teacher's vectors. What learns from pairs takes each query
    with its relevant documents (``text_pairs``), or with others that BM25 finds beside them (``query_pairs``).
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

    def role(self, example: Example, place: int) -> str:
        """Return that the first of a pair is a query, and a text one that has a corpus or says so; else a document."""
        if TEXTS[0] in example:
            return ("query", "document")[place]
        return "query" if "corpus" in example else super().role(example, place) or "document"

    def plain(self, example: Example) -> Example:
        """Return what is read, and of a query that it is one."""
        return {**super().plain(example), "prompt_name": "query"} if "corpus" in example else example

    def completed(
        self,
        examples: Sequence[Example],
        answers: Sequence[Answer],
        outputs: Sequence[Array],
        read: Read,
        index: IndexForm | None = None,
    ) -> list[Answer]:
        """Rank the documents of every query's corpus.

        Args:
            examples: The queries.
            answers: What ``decode`` made of each.
            outputs: Their vectors.
            read: Returns the vectors of texts.
            index: The form of the index that holds all documents; without one ``CHUNK`` of them are held at a time.
        """
        from eval.progress.stages import one_by_one
        from eval.ranking.best import Best, unit
        from eval.ranking.vector_index import VectorIndex

        found = list(answers)
        for corpus, places in by_corpus(examples):
            queries = unit(np.stack([outputs[place][0] for place in places]))
            best, held = Best(len(places), RANKED + 1), None if index is None else VectorIndex(index)
            for first in one_by_one(range(0, len(corpus.texts), CHUNK), "reading documents"):
                documents = np.concatenate(read([{"text": text} for text in corpus.texts[first : first + CHUNK]]))
                if held is None:
                    best.add(queries @ unit(documents).T)
                else:
                    held.add(documents)
            ranked, scores = (best.places, best.scores) if held is None else held.search(queries, RANKED + 1)
            for row, place in enumerate(places):
                others = _others(corpus, examples[place], ranked[row])
                ids = [corpus.ids[ranked[row][i]] for i in others]
                found[place] = self.answer_of(ids, scores[row][others])
            if held is not None and held.form.approximate:
                exact, _ = held.search(queries, RANKED + 1, exact=True)
                for row, place in enumerate(places):
                    others = _others(corpus, examples[place], exact[row])
                    found[place] |= {"exact": [corpus.ids[exact[row][i]] for i in others][:RANKED]}
        return found

    def text_pairs(self, examples: Sequence[Example]) -> list[Example]:
        """Return each query with each document that is relevant to it, its grade as label and the query as group."""
        return [
            {"text_a": query, "text_b": document, "label": grade, "group": example["id"]}
            for example in examples
            for query, document, grade in relevant_pairs(example)
        ]


def _others(corpus: Corpus, query: Example, ranked: Array) -> list[int]:
    """Return which of the ranked documents are not the query itself, whatever a rule has made of its text."""
    text = query.get("asked", query["text"])
    return [i for i, at in enumerate(ranked) if not corpus.is_query(int(at), query["id"], text)]
