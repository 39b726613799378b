"""What kinds of tasks have in common whose prediction is a ranking of documents for a query."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from eval.examples import TEXTS, Answer, Array, Asks, Example
from eval.kinds.kind import Kind
from eval.kinds.values import LabelReader
from eval.metrics import ranked_lists
from eval.metrics.scorers import Metric, Values

if TYPE_CHECKING:
    from eval.ranking.document_set import Corpus

RANKED = 100
"""Documents of a ranking that are kept."""
COMPARED_DOCUMENTS = 10
"""Documents at the top of two rankings that are compared."""


class RankedDocuments(Kind):
    """Queries, the documents among which each is answered, and those that are relevant to it.

    A query has ``id``, ``text``, ``corpus`` and, as its truth, ``relevant``, the grade of each judged document; one
    that a rule perturbed (``eval.stress``) has its text before that as ``asked``. Its prediction is ``ranking``, the
    ids of the best documents, with their ``scores``; of an approximate search, ``exact`` is that of the exact one.
    """

    fields = ("id", "text", "corpus", "relevant")
    truth = "relevant"
    searches = True
    unscored = ("scores", "exact")
    max_length = 256
    metric = "ndcg@10"
    no_augment = "is not augmented; put more documents into its corpus instead"
    no_page = "its page has no documents to search"
    unlisted = ""

    def inputs(self, values: Mapping[str, Any]) -> tuple[str, ...]:
        """Take queries, and texts of documents alone."""
        return ("id", "text", "corpus") if "corpus" in values else ("text",)

    def read_truth(self, value: Any, example: Example, labels: LabelReader) -> Any:
        """Return the grades, which were checked when the folder was read."""
        del example, labels
        return dict(value)

    def plain(self, example: Example) -> Example:
        """Return the text or the pair that is read, without the corpus."""
        if "corpus" not in example:
            return example
        (read,) = self.parts(example, pair=True)
        return {"text": read} if isinstance(read, str) else dict(zip(TEXTS, read, strict=True))

    def query_pairs(self, spec: Asks, examples: Sequence[Example]) -> list[Example]:
        """Return each query with its relevant documents, and with ``spec.negatives`` of its candidates that are not."""
        found: list[Example] = []
        for example in with_candidates(examples):
            corpus, relevant, right = example["corpus"], example["relevant"], list(relevant_pairs(example))
            texts = [corpus.text_of(name) for name in example["candidates"] if relevant.get(name, 0) <= 0]
            copies = {document for _, document, _ in right}  # under another id, which nobody judged
            others = [text for text in dict.fromkeys(texts) if text not in copies][: spec.negatives]
            found += [
                {"text_a": query, "text_b": document, "label": grade, "group": example["id"]}
                for query, document, grade in (*right, *((example["text"], text, 0.0) for text in others))
            ]
        return found

    def perturbed(self, example: Example) -> tuple[str, ...]:
        """Return the query alone: its documents are those of the corpus."""
        del example
        return ("text",)

    def metrics(self) -> tuple[Metric, ...]:
        """Means over queries of how far up relevant documents stand."""
        return ranked_lists.metrics()

    def default_metric(self, pair: bool) -> str:
        """Return that of BEIR."""
        del pair
        return self.metric

    def unfit(self, metric: str, spec: Asks) -> None:
        """Return None: each fits."""
        del metric, spec

    def values(self, spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> Values:
        """Return the metric of each query."""
        return ranked_lists.by_query(spec.metric, answers, examples)

    def agreement(self, pairs: Sequence[tuple[Answer, Answer]]) -> dict[str, float]:
        """Return ``top_10``, the share of the ten best documents that are the same; nothing without rankings."""
        if not all("ranking" in answer for answer in chain.from_iterable(pairs)):
            return {}
        tops = [[set(answer["ranking"][:COMPARED_DOCUMENTS]) for answer in pair] for pair in pairs]
        shares = [len(first & second) / max(1, len(first), len(second)) for first, second in tops]
        return {"top_10": float(np.mean(shares)) if shares else float("nan")}

    def condensed(self, spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> list[Answer]:
        """Return the rankings without scores."""
        del spec, examples
        return [{"ranking": list(answer["ranking"])} for answer in answers]

    def told_apart(
        self, gold: Sequence[Example], answers: Sequence[Sequence[Answer]], examples: Sequence[Example] | None
    ) -> dict[int, list[str]]:
        """Return the queries whose best documents differ."""
        return Kind.told_apart(self, gold, answers, examples)

    def said(self, answer: Answer, example: Example) -> str:
        """Return the best document; of a truth, all that are relevant."""
        del example  # a truth comes as the only value
        if "ranking" in answer:
            return next(iter(answer["ranking"]), "")
        return ", ".join(name for name, grade in answer["truth"].items() if grade > 0)

    def turned(
        self, labels: Sequence[str], before: Mapping[str, Any], now: Mapping[str, Any], output: Array
    ) -> Array | None:
        """Return, for each place, by how much the document there now scores above the one that stood there before.

        A document that is no longer among the best counts with its score from before.
        """
        del labels, output
        known = dict(zip(before["ranking"], before["scores"], strict=True))
        known |= zip(now["ranking"], now["scores"], strict=True)
        if len(before["ranking"]) != len(now["ranking"]):
            return None
        return np.array([known[b] - known[a] for a, b in zip(before["ranking"], now["ranking"], strict=True)])

    def answer_of(self, names: Sequence[str], scores: Array) -> Answer:
        """Return a prediction of ranked documents, six decimals of each score."""
        return {"ranking": list(names[:RANKED]), "scores": np.round(scores[:RANKED].astype(np.float64), 6).tolist()}


Read = Callable[[Sequence[Example]], Sequence[Array]]
"""Returns a model's outputs for further examples."""


def by_corpus(examples: Sequence[Example]) -> Iterator[tuple[Corpus, list[int]]]:
    """Yield each corpus with the places of the examples that are answered out of it."""
    found: dict[str, list[int]] = {}
    for place, example in enumerate(examples):
        found.setdefault(example.get("corpus", ""), []).append(place)
    for corpus, places in found.items():
        if corpus:
            yield examples[places[0]]["corpus"], places


def with_candidates(examples: Sequence[Example]) -> list[Example]:
    """Return the queries with the documents of the first stage, unless they have them; texts alone are left out."""
    from eval.ranking.first_stage import candidates

    found: list[Example] = []
    for corpus, places in by_corpus(examples):
        queries = [examples[place] for place in places]
        if all("candidates" in query for query in queries):
            found += queries
            continue
        names = candidates(corpus, [(query["id"], query["text"]) for query in queries], RANKED)
        found += [{**query, "candidates": list(own)} for query, own in zip(queries, names, strict=True)]
    return found


def relevant_pairs(example: Example) -> Iterator[tuple[str, str, float]]:
    """Yield query, relevant document and grade of an example; nothing of one without a truth."""
    for name, grade in example.get("relevant", {}).items():
        if grade > 0:
            yield example["text"], example["corpus"].text_of(name), float(grade)
