"""Tagging: one tag for each word, such as named entities in BIO notation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from eval.errors import quantity
from eval.examples import IGNORED, Answer, Array, Asks, Example, Feature, Reads
from eval.kinds.kind import Kind
from eval.kinds.values import BadItemError, LabelReader, shown, written_list
from eval.metrics import scorers
from eval.metrics.scorers import Metric, Values

if TYPE_CHECKING:
    from torch import Tensor

UNTAGGED = -1
"""The target of a word of which no tag is known; a teacher may answer it."""
ENTITY_TAG = re.compile(r"O|[BIES]-.+")


class Tagging(Kind):
    """One of the labels of the task for each word of a sentence; the first subword token of a word answers for it."""

    name = "tagging"
    fields = ("tokens", "tags")
    group_columns = ("doc", "doc_id", "document", "document_id")
    truth = "tags"
    lists = {"tokens": 0}  # noqa: RUF012 (never changed)
    labelled = True
    pairs = False
    per_token = True
    words = True
    auto_class = "AutoModelForTokenClassification"
    metric = "entity_f1"
    predicted = "tags"
    meaning = "one tag for each word"
    answer = "one tag a word"
    line = "words with white space between them, or a JSON object with `tokens`, a list of words"
    pipeline = "token-classification"
    web_pipeline = "token-classification"
    web_example = '{ tokens: ["one", "word", "each"] }'
    no_page = ""

    def given(self, pair: bool) -> tuple[str, ...]:
        """Return the field of the words."""
        del pair
        return ("tokens",)

    def form(self, example: Example) -> None:
        """Return None: there is one form alone."""
        del example

    def parsed(self, name: str, cell: str, values: Mapping[str, Any]) -> list[Any]:
        """Return the words or tags of a cell: a list as ``written_list`` reads it, or what white space divides."""
        del values
        found = written_list(cell)
        numbers = name == self.truth  # the tags of a data set may be numbers
        return found if found is not None and (numbers or all(isinstance(one, str) for one in found)) else cell.split()

    def read_truth(self, value: Any, example: Example, labels: LabelReader) -> list[str]:
        """Return a tag for each word."""
        if not isinstance(value, list):
            raise BadItemError(f"'tags' must be a list of strings, not {shown(value)}")
        tags = [labels.label(tag) for tag in value]
        if len(tags) != len(example["tokens"]):
            words = quantity(len(example["tokens"]), "token")
            raise BadItemError(f"has {words} but {quantity(len(tags), 'tag')}; give one tag a token")
        return tags

    def labels_in(self, truth: Any) -> Iterable[str]:
        """Return the tags of a sentence."""
        return truth  # type: ignore[no-any-return]

    def label_order(self, label: str) -> Any:
        """Sort O first."""
        return label != "O", label

    def read_line(self, line: str, fields: Sequence[str]) -> dict[str, Any]:
        """Return the words of a line."""
        del fields
        return {"tokens": line.split()}

    def probe(self, text: str, pair: bool) -> dict[str, Any]:
        """Return the words of any text."""
        del pair
        return {"tokens": text.split(" ")}

    def parts(self, example: Example, pair: bool) -> list[Any]:
        """Return the words."""
        del pair
        return [list(example["tokens"])]

    def truncates(self, settings: Reads, room: Callable[[int], int]) -> tuple[int, str]:
        """Let windows share a token at least: then a word cut by a window's edge began in the window before."""
        return max(1, min(settings.stride, room(1) // 2)), super().truncates(settings, room)[1]

    def mark(self, feature: Feature, example: Example, encoding: Any, first: bool) -> None:
        """Write down where each word begins."""
        del example
        previous: int | None = None
        words: list[int] = []
        # A later window may begin inside a word: its first piece was seen in the window before.
        opened = first
        for word in encoding.word_ids:
            starts = word is not None and word != previous and opened
            words.append(word if starts else -1)
            opened = opened or word is not None
            previous = word
        feature.words = words

    def decode(
        self, settings: Reads, examples: Sequence[Example], features: Sequence[Feature], outputs: Sequence[Array]
    ) -> tuple[list[Answer], list[Array]]:
        """Return ``tags``, one a word, and the logits ``[words, C]``."""
        labels = settings.labels
        outside = labels.index("O") if "O" in labels else 0
        # A word without a piece of its own (a control character) keeps "O" for certain.
        blank = np.zeros(len(labels), dtype=np.float32)
        blank[outside] = 1.0
        logits = [np.tile(blank, (len(example["tokens"]), 1)) for example in examples]
        seen: list[set[int]] = [set() for _ in examples]
        for feature, output in zip(features, outputs, strict=True):
            for position, word in enumerate(feature.words or ()):
                if word >= 0 and word not in seen[feature.example]:
                    seen[feature.example].add(word)
                    logits[feature.example][word] = output[position]
        answers: list[Answer] = [{"tags": [labels[i] for i in rows.argmax(axis=-1)]} for rows in logits]
        return answers, logits

    def regret(self, settings: Reads, feature: Feature, expected: Array, found: Array) -> Array:
        """Compare the tags of words."""
        places = [place for place, word in enumerate(feature.words or ()) if word >= 0]
        return super().regret(settings, feature, expected[places], found[places])

    def metrics(self) -> tuple[Metric, ...]:
        """Entities as conlleval counts them, and single tags."""
        return (
            Metric("entity_f1", scorers.from_counts(scorers.entity_counts, scorers.f1)),
            Metric("entity_precision", scorers.from_counts(scorers.entity_counts, scorers.precision)),
            Metric("entity_recall", scorers.from_counts(scorers.entity_counts, scorers.recall)),
            Metric("token_accuracy", scorers.token_accuracy),
        )

    def unfit(self, metric: str, spec: Asks) -> str | None:
        """Say why tags are no entities."""
        other = [label for label in spec.labels if not ENTITY_TAG.fullmatch(label)]
        if metric.startswith("entity_") and other:
            return f"{metric!r} is for BIO tags such as O, B-PER, I-PER, but there is {other[0]!r}; use token_accuracy"
        return None

    def values(self, spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> Values:
        """Return 1 for a sentence with all tags right, else 0."""
        del spec
        pairs = zip(answers, examples, strict=True)
        return np.array([list(a["tags"]) == list(e["tags"]) for a, e in pairs], dtype=np.float64)

    def agreement(self, pairs: Sequence[tuple[Answer, Answer]]) -> dict[str, float]:
        """Return ``words``, the share of equal tags, and ``sentences``, that of sentences with all tags equal."""
        words = (x == y for a, b in pairs for x, y in zip(a["tags"], b["tags"], strict=True))
        return {"words": scorers.share(words), "sentences": scorers.share(a["tags"] == b["tags"] for a, b in pairs)}

    def told_apart(
        self, gold: Sequence[Example], answers: Sequence[Sequence[Answer]], examples: Sequence[Example] | None
    ) -> dict[int, list[str]]:
        """Return the tags of the words of a sentence that are not tagged alike; a word that is not known, by number."""
        found = {}
        for place, (truth, *given) in enumerate(zip(gold, *answers, strict=True)):
            tags = [answer["tags"] for answer in given]
            differ = [word for word, several in enumerate(zip(*tags, strict=True)) if len(set(several)) > 1]
            words = examples[place]["tokens"] if examples else [str(word + 1) for word in range(len(truth["tags"]))]
            if differ:
                found[place] = [
                    ", ".join(f"{words[word]} {side[word]}" for word in differ) for side in (truth["tags"], *tags)
                ]
        return found

    def target(self, spec: Asks, feature: Feature, example: Example, left: bool) -> list[int]:
        """Return the ids of the tags, ``UNTAGGED`` without any, ``IGNORED`` on all but the first token of a word."""
        del left
        tags = example.get("tags")
        if tags is None:
            return [UNTAGGED if word >= 0 else IGNORED for word in feature.words or ()]
        return [spec.labels.index(tags[word]) if word >= 0 else IGNORED for word in feature.words or ()]

    def padded(
        self, targets: Sequence[Any], places: Sequence[slice], length: int, inputs: Sequence[int]
    ) -> dict[str, Array]:
        """Return ``labels`` and ``words``, whether the first token of a word stands there, both ``[rows, length]``."""
        del inputs
        labels = self.padded_tokens(targets, places, length)["labels"]
        return {"labels": np.where(labels == UNTAGGED, IGNORED, labels), "words": labels != IGNORED}

    def soft_rows(self, targets: Mapping[str, Tensor], mask: Tensor, only_predicted: bool) -> Tensor:
        """Compare the first token of each word, which alone is read later; without ``words``, where a tag is known."""
        del mask, only_predicted
        return targets["words"] if "words" in targets else targets["labels"] != IGNORED
