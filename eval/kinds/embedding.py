"""Embedding: a vector for a text, to be compared by cosine; labels are a class for a text, or a number for a pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from eval.examples import TEXT, TEXTS, Answer, Array, Asks, Example, Feature, Reads
from eval.kinds.kind import Kind
from eval.kinds.values import LabelReader, written_number
from eval.metrics import scorers
from eval.metrics.correlation import pearson
from eval.metrics.scorers import Metric, Values

if TYPE_CHECKING:
    from torch import Tensor

COMPARED = 512
"""Texts whose cosines to one another are compared between two models."""
VECTOR_MARGIN = 0.05
"""Vectors agree when the cosine of the two is at least 1 less this."""


class Embedding(Kind):
    """A vector for each text, read alone, which a teacher's vectors or labels of pairs can train."""

    name = "embedding"
    pairs = False
    others = TEXTS
    several = True
    no_augment = "learns from plain text; put more text into its data instead"
    auto_class = "AutoModel"
    graph_outputs = ("vectors",)
    vectors = True
    texts_alone = True
    metric = "spearman"
    meaning = "a vector for each text, to be compared by cosine"
    answer = "a vector for a text, to be compared by cosine"
    line = "a text, or a JSON object with `text`, or with `text_a` and `text_b` for the cosine of two texts"
    pipeline = "sentence-similarity"
    web_example = '{ text_a: "a text", text_b: "another" }'
    no_page = ""
    unlisted = "its answers are vectors, of which no two are the same"

    def inputs(self, values: Mapping[str, Any]) -> tuple[str, ...]:
        """Take single texts and pairs."""
        return TEXT if values.keys().isdisjoint(TEXTS) else TEXTS

    def form(self, example: Example) -> bool | None:
        """Return the form of examples with a label; texts alone may have any."""
        return "text_a" in example if "label" in example else None

    def parsed(self, name: str, cell: str, values: Mapping[str, Any]) -> Any:
        """Return the number of a cell with the label of a pair."""
        return written_number(cell) if name == self.truth and "text_a" in values else cell

    def read_truth(self, value: Any, example: Example, labels: LabelReader) -> Any:
        """Return the number of a pair, or the class of a text."""
        return labels.score(value) if "text_a" in example else labels.label(value)

    def arranged(self, spec: Asks, splits: Mapping[str, Sequence[Example]]) -> dict[str, Sequence[Example]]:
        """Return the splits with the texts of ``unlabeled`` at the end of ``train``."""
        del spec
        rest = {name: split for name, split in splits.items() if name not in ("train", "unlabeled")}
        texts = [example for name in ("train", "unlabeled") for example in splits.get(name, ())]
        return {"train": texts, **rest} if texts else rest

    def width(self, outputs: int, hidden_size: int, vocab_size: int) -> int:
        """Return that of a state."""
        del outputs, vocab_size
        return hidden_size

    def reads_pairs(self, pair: bool) -> bool:
        """Return that texts are read alone."""
        del pair
        return False

    def parts(self, example: Example, pair: bool) -> list[Any]:
        """Return the one or two texts."""
        del pair
        return [example[field] for field in self.inputs(example)]

    def role(self, example: Example, place: int) -> str:
        """Return what the example says of itself as ``prompt_name``, if it does."""
        del place
        return str(example.get("prompt_name", ""))

    def decode(
        self, settings: Reads, examples: Sequence[Example], features: Sequence[Feature], outputs: Sequence[Array]
    ) -> tuple[list[Answer], list[Array]]:
        """Return ``vectors``, with the cosine of two as ``score``, and the vectors ``[texts, d]`` as they are."""
        del settings
        vectors: list[list[Array]] = [[] for _ in examples]
        for feature, output in zip(features, outputs, strict=True):
            vectors[feature.example].append(output)
        logits = [np.stack(rows) for rows in vectors]
        answers: list[Answer] = []
        for rows in logits:
            # Six decimals are what a vector of length 1 is worth in float32; more would only be longer to read.
            answer: Answer = {"vectors": np.round(rows.astype(np.float64), 6).tolist()}
            if len(rows) == 2:
                answer["score"] = float(cosines(rows[:1], rows[1:])[0])
            answers.append(answer)
        return answers, logits

    def regret(self, settings: Reads, feature: Feature, expected: Array, found: Array) -> Array:
        """Return 1 less the cosine of the two vectors."""
        del settings, feature
        return 1 - cosines(expected[None], found[None])

    def tie(self, scale: float) -> float:
        """Return what the cosine may lack."""
        del scale
        return VECTOR_MARGIN

    def metrics(self) -> tuple[Metric, ...]:
        """Correlations with the labels of pairs; the share of right neighbours for texts with a class."""
        return (
            Metric("spearman", scorers.spearman),
            Metric("pearson", scorers.pearson),
            Metric("nearest", scorers.nearest),
        )

    def default_metric(self, pair: bool) -> str:
        """Return nearest for single texts, which have a class."""
        return self.metric if pair else "nearest"

    def unfit(self, metric: str, spec: Asks) -> str | None:
        """Say why a metric is for the other form of examples."""
        if (metric == "nearest") != spec.pair:
            return None
        forms = ("single texts with a class as label", "pairs of texts with a number as label")
        fitting = "spearman or pearson" if spec.pair else "nearest"
        return f"{metric!r} is for {forms[not spec.pair]}, here are {forms[spec.pair]}; use {fitting}"

    def values(self, spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> Values:
        """Return 1 for a text whose nearest other is of its class, else 0; for pairs the negative error of the ranks.

        That is the squared difference of the ranks of cosine and label, ranks from 0 to 1.
        """
        if spec.pair:
            return -scorers.rank_errors(answers, examples)
        return scorers.right_neighbours(answers, examples)

    def condensed(self, spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> list[Answer]:
        """Return the cosine of two texts as ``score``, or whether the nearest text is ``right``; no vectors."""
        if spec.pair:
            return [{"score": answer["score"]} for answer in answers]
        return [{"right": int(right)} for right in scorers.right_neighbours(answers, examples)]

    def agreement(self, pairs: Sequence[tuple[Answer, Answer]]) -> dict[str, float]:
        """Return ``cosine`` where vectors have one width, and ``similarities``.

        ``cosine`` is the mean cosine of both models' vectors of a text; ``similarities`` the Pearson correlation of the
        cosines that each model finds between the first ``COMPARED`` texts. Without vectors there is none of them.
        """
        if not all("vectors" in answer for pair in pairs for answer in pair):
            return {}
        first, second = (_vectors([pair[side] for pair in pairs]) for side in (0, 1))
        upper = np.triu_indices(min(len(first), COMPARED), k=1)
        found = {"similarities": pearson(*(_similarities(side[:COMPARED])[upper] for side in (first, second)))}
        if first.shape != second.shape:
            return found
        return {"cosine": float(cosines(first, second).mean()), **found}

    def target(self, spec: Asks, feature: Feature, example: Example, left: bool) -> None:
        """Return None: nothing is known of a text alone."""
        del spec, feature, example, left

    def padded(
        self, targets: Sequence[Any], places: Sequence[slice], length: int, inputs: Sequence[int]
    ) -> dict[str, Array]:
        """Return no targets."""
        del targets, places, length, inputs
        return {}

    def loss(self, spec: Asks, logits: Tensor, targets: Mapping[str, Tensor], mask: Tensor) -> Tensor:
        """Refuse: there is nothing to learn from text by text.

        Raises:
            UserError: Always.
        """
        from eval.errors import UserError

        raise UserError(
            "an embedding task has no labels to learn from text by text; train with a teacher's vectors: "
            "distill.embedding, or a method that reads hidden states alone"
        )

    def soft_pairs(
        self,
        student: Tensor,
        teacher: Tensor,
        targets: Mapping[str, Tensor],
        mask: Tensor,
        only_predicted: bool = False,
    ) -> list[tuple[Tensor, Tensor]]:
        """Refuse: vectors are no logits.

        Raises:
            UserError: Always.
        """
        from eval.errors import UserError

        raise UserError("an embedding has vectors, not logits; distil it with distill.embedding")


def cosines(first: Array, second: Array) -> Array:
    """Return the cosine of each row of ``[n, d]`` with the same row of the other, in float64; 0 for a row of zeros."""
    x, y = (np.asarray(rows, dtype=np.float64) for rows in (first, second))
    lengths = np.linalg.norm(x, axis=-1) * np.linalg.norm(y, axis=-1)
    return np.asarray((x * y).sum(axis=-1) / np.maximum(lengths, np.finfo(np.float64).tiny))


def _vectors(answers: Sequence[Answer]) -> Array:
    return np.array([vector for answer in answers for vector in answer["vectors"]], dtype=np.float64)


def _similarities(vectors: Array) -> Array:
    scaled = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    return np.asarray(scaled @ scaled.T)
