"""What a model is asked to do: the kind of answer, its labels, its metric; and a split of examples that show it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, overload

from pydantic import BaseModel, ConfigDict, Field, WrapValidator, model_validator

from eval.example_digests import examples_digest, groups_of
from eval.examples import Example as Example
from eval.kinds.kind_registry import kind_names, kind_of
from eval.metrics.own_metric import OwnMetric, as_name

if TYPE_CHECKING:
    KindName = str
else:
    KindName = Literal[kind_names()]
    """Names of kinds, those of other packages included."""


def _metric(value: Any, known: Callable[[Any], str]) -> str:
    named = as_name(value)
    return named if isinstance(named, OwnMetric) else known(named)


MetricName = Annotated[str, WrapValidator(_metric)]
"""The name of a metric; a function given in its place becomes an ``OwnMetric``."""
Pooling = Literal["mean", "first", "max", "weighted_mean", "last"]
"""How the last states of a text's tokens become its vector."""
BM25 = "bm25"
"""The first stage of a reranking task that no other is named for."""
SELECT = "select"
"""The split that chooses, once roles were assigned (``eval.data.roles``)."""


class TaskSpec(BaseModel):
    """What a model answers and how texts reach it; plain data that travels with every artifact.

    Attributes:
        kind: The form of the answer.
        labels: Class names or BIO tags in the order of their ids; empty for other kinds.
        metric: Name of the primary metric (see ``eval.scores.metrics_of``); higher is better. A function of your own,
            ``(y_true, y_pred) -> float``, becomes its name (see ``eval.metrics.own_metric``).
        pair: Whether an example is a pair of texts (``text_a``, ``text_b``); for embedding, which reads every text
            alone, whether the examples with a label are. Not said of a text and its choices.
        max_length: Most tokens of one input, special tokens counted. Longer qa and tagging inputs are cut in windows.
        stride: Tokens that neighbouring windows share (qa, tagging).
        truncation: Which text of a pair is truncated; a choice is the second of a pair.
        truncation_side: The end at which a text is truncated.
        class_weights: Weight of each label in the task loss, or None for equal weights.
        pooling: For embedding: a text's vector is the mean of its tokens' last states, the mean weighted by position
            from 1, their highest values, or the first or the last token's state.
        normalize: For embedding: whether vectors are scaled to length 1.
        prompt: For embedding and seq2seq: what is put before each text, such as ``query: `` or ``summarize: ``.
        query_prompt: For embedding: what is put before a text that is known to be a query, as retrieval knows it; None
            for ``prompt``.
        document_prompt: Likewise before a document.
        thresholds: For multilabel: the probability from which each label is answered; empty for 0.5. For qa-with-null:
            by how much the null score may exceed that of the best span; empty for 0.
        choose_thresholds: Whether whatever is trained gets thresholds that are best for the examples that choose.
        target_length: For seq2seq: most tokens that are written or learned from, with the one that ends the text.
        beams: For seq2seq: beginnings that a beam search keeps; 1 writes the likeliest token each time.
        length_penalty: For seq2seq with beams: the power of its length that the log-probability of a text is divided
            by; higher values prefer longer texts.
        negatives: For retrieval and reranking: documents of the first stage, the best that are not relevant, that are
            learned from beside the relevant ones of each training query.
        first_stage: For reranking: what finds the documents that are sorted: ``bm25``, or the folder of an embedder.

    Examples:
        >>> TaskSpec(kind="classification", labels=("bad", "good"), pair=True).outputs
        2
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: KindName
    labels: tuple[str, ...] = ()
    metric: MetricName = "accuracy"
    pair: bool = False
    max_length: int = Field(default=128, ge=4)
    stride: int = Field(default=32, ge=0)
    truncation: Literal["longest_first", "only_first", "only_second"] = "longest_first"
    truncation_side: Literal["left", "right"] = "right"
    class_weights: tuple[float, ...] | None = None
    pooling: Pooling = "mean"
    normalize: bool = True
    # Left out of files while they say nothing, so those of other tasks, and their digests, stay what they were.
    prompt: str = Field(default="", exclude_if=lambda value: not value)
    query_prompt: str | None = Field(default=None, exclude_if=lambda value: value is None)
    document_prompt: str | None = Field(default=None, exclude_if=lambda value: value is None)
    thresholds: tuple[float, ...] = Field(default=(), exclude_if=lambda value: not value)
    choose_thresholds: bool = Field(default=False, exclude_if=lambda value: not value)
    target_length: int = Field(default=128, ge=2, exclude_if=lambda value: value == 128)
    beams: int = Field(default=1, ge=1, le=64, exclude_if=lambda value: value == 1)
    length_penalty: float = Field(default=1.0, ge=0, exclude_if=lambda value: value == 1)
    negatives: int = Field(default=4, ge=1, exclude_if=lambda value: value == 4)
    first_stage: str = Field(default=BM25, exclude_if=lambda value: value == BM25)

    @model_validator(mode="after")
    def _one_threshold_each(self) -> TaskSpec:
        wanted = kind_of(self.kind).thresholds(self.labels)
        if self.thresholds and len(self.thresholds) != wanted:
            raise ValueError(f"thresholds: got {len(self.thresholds)}, {self.kind} of these labels has {wanted}")
        return self

    @property
    def outputs(self) -> int:
        """Width of the last layer: classes, tags, 1 for regression and a choice, 2 (start, end) for qa; else 0."""
        return kind_of(self.kind).outputs(self.labels)

    @property
    def per_token(self) -> bool:
        """Whether a network answers at every token; otherwise once a text."""
        return kind_of(self.kind).per_token


class Examples(Sequence[Example]):
    """A split of a data set: examples in file order, with a digest of their content.

    Args:
        items: The examples.
        name: What messages call the split, such as ``train``.
        skipped: How many bad lines were left out when the files were read.

    Examples:
        >>> films = Examples([{"text": "a warm film", "label": "good"}, {"text": "a dull film", "label": "bad"}])
        >>> films[0]["label"], len(films[1:])
        ('good', 1)
        >>> films.digest == Examples(films.items, name="train").digest
        True
    """

    def __init__(self, items: Sequence[Example], name: str = "examples", skipped: int = 0) -> None:
        self.items = tuple(items)
        self.name = name
        self.skipped = skipped

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> Examples: ...
    def __getitem__(self, index: int | slice) -> Example | Examples:
        if isinstance(index, slice):
            return Examples(self.items[index], self.name, self.skipped)
        return self.items[index]

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the examples, in order; equal for equal content wherever it was read from.

        The field ``group`` is left out: no model reads it, so caches, teachers and results stay those of the data.
        """
        return examples_digest(self.items)

    @property
    def groups(self) -> list[str | None] | None:
        """The group of each example; None if no example has one."""
        return groups_of(self.items)

    def sample(self, count: int, seed: int) -> Examples:
        """Return ``count`` examples drawn without replacement, in file order; all of them if there are fewer."""
        if count >= len(self.items):
            return self
        chosen = sorted(random.Random(seed).sample(range(len(self.items)), count))
        return Examples([self.items[i] for i in chosen], self.name, self.skipped)
