"""The base of every kind of task: all that is asked of one beside reading, answering and training, with defaults.

The defaults are those of one prediction for a text, or for a pair of texts that are read together. An export carries a
copy of this file and of that of its kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from eval.examples import TEXT, TEXTS, Answer, Array, Asks, Example
from eval.files.rows import Row
from eval.kinds.learning import Learning
from eval.kinds.values import LabelReader
from eval.metrics.scorers import Metric, Values


class Kind(Learning):
    """A kind of task. A subclass says what is its own; one instance of it serves everything.

    Attributes of data:
        fields: Fields of an item that are kept; others are dropped.
        group_columns: Usual names, beside ``group``, of a column that says which examples belong together.
        labelled: Whether truths are names out of ``TaskSpec.labels``.
        searches: Whether predictions are documents of a corpus; the data is then a folder in the layout of BEIR.
        blank: Whether an empty cell of a text table is a truth, of nothing, and not a missing one.
        max_length: Usual most tokens of an input.
        stride: Usual tokens that neighbouring windows share.
        truncation: Which text of a pair is usually truncated.
        no_augment: What is said after the kind's name where examples cannot be augmented; empty if they can.

    Attributes of the network:
        auto_class: The class of transformers that holds the network with its head.
        alike: Other kinds whose models answer this one as they are.
        problem_type: What transformers calls the kind, where several share a class.
        graph_outputs: Names of the outputs of an exported graph.
        second_segment: Whether there is always a second text in an input.

    Attributes of scores:
        metric: The primary metric when none is named.
        chooses: Whether thresholds are chosen, unless a task says otherwise.
        calibrated: Whether predictions are labels with a probability.
        unscored: Fields of a prediction that neither scores nor agreement read.
        predicted: Field of a prediction that a metric of the user's own gets; empty if it has none that could be given.
        good_enough: Share of equal predictions at which no other form of an 8-bit export is tried.

    Attributes in words:
        meaning: What is asked, for a list of kinds.
        answer: What a model answers with, for a model card.
        line: What a line of input is, for the page of an export.
        longer: What ``max_length`` limits and what happens to more, for a new recipe.
        pipeline: The pipeline of transformers.
        web_pipeline: That of transformers.js that gives the same predictions, if any.
        web_example: An example in JavaScript.
        no_page: Why the page of the ``web`` export cannot show it; empty if it can.
        unlisted: Why answers that differ cannot be listed; empty if they can.
    """

    fields: tuple[str, ...] = (*TEXT, *TEXTS, "label")
    group_columns: tuple[str, ...] = ("query_id", "qid")
    labelled: bool = False
    searches: bool = False
    blank: bool = False
    max_length: int = 128
    stride: int = 32
    truncation: str = "longest_first"
    no_augment: str = ""

    auto_class: str = "AutoModelForSequenceClassification"
    alike: tuple[str, ...] = ()
    problem_type: str | None = None
    graph_outputs: tuple[str, ...] = ("logits",)
    second_segment: bool = False

    metric: str = ""
    chooses: bool = False
    calibrated: bool = False
    unscored: tuple[str, ...] = ("probability",)
    predicted: str = ""
    good_enough: float = 0.99

    meaning: str = ""
    answer: str = ""
    line: str = "a text, or a JSON object with `text`"
    longer: str = "an input; what is longer is truncated"
    pipeline: str = "text-classification"
    web_pipeline: str | None = None
    web_example: str = '"a text"'
    no_page: str = "its page does not know this kind"
    unlisted: str = ""

    @property
    def head(self) -> str:
        """End of the names of the classes that have the head, such as ``ForTokenClassification``; empty without one."""
        return self.auto_class.removeprefix("AutoModel")

    def has_head(self, architecture: str) -> bool:
        """Return whether a class of transformers, given by its name, has the head."""
        return bool(self.head) and architecture.endswith(self.head)

    @property
    def one_label(self) -> bool:
        """Whether it chooses one of the labels for an example."""
        return self.labelled and not self.per_token

    @property
    def one_score(self) -> bool:
        """Whether an example is one input, and its prediction one of the numbers that the network gives for it."""
        several = self.several or self.joined or self.searches or self.per_token
        return not (several or self.vectors or self.masks or self.causal or self.writes)

    @property
    def gold(self) -> tuple[str, ...]:
        """Fields of an example that are kept with its prediction, the truth last."""
        return () if self.truth is None else (self.truth,)

    @property
    def named(self) -> str:
        """The name with its article."""
        return f"{'an' if self.name[:1] in 'aeiou' else 'a'} {self.name}"

    # ---- items of data

    def inputs(self, values: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the fields that an item with such values must have, without the truth."""
        return self.given(not values.keys().isdisjoint(TEXTS))

    def form(self, example: Example) -> bool | None:
        """Return whether an example is a pair, if all of a data set must be alike in this; else None."""
        return "text_a" in example

    def group_of(self, example: Example) -> str | None:
        """Return the group of an example whose file names none; None if it stands alone."""
        del example
        return None

    def rows(self, rows: Iterable[Row]) -> Iterable[Row]:
        """Return the rows of a file in our own form, where the kind has published ones."""
        return rows

    def label_columns(self, values: Mapping[str, Any], labels: Sequence[str] | None) -> tuple[str, ...]:
        """Return the columns of a table that hold the truth together, one for each label; usually there are none.

        Args:
            values: A row, without the columns that are known to hold something else.
            labels: The labels, where they are named.
        """
        del values, labels
        return ()

    def beside(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return what an example with a truth may hold beside what it must, checked; by default nothing.

        Args:
            values: All fields of the item.

        Raises:
            BadItemError: It is none of this kind.
        """
        del values
        return {}

    def parsed(self, name: str, cell: str, values: Mapping[str, Any]) -> Any:
        """Return the value of a cell of a text table, of which ``values`` are the others."""
        del name, values
        return cell

    def read_truth(self, value: Any, example: Example, labels: LabelReader) -> Any:
        """Return the truth as it is kept.

        Args:
            value: As it was read.
            example: The other fields, checked.
            labels: Reads labels and numbers.

        Raises:
            BadItemError: It is none of this kind.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement read_truth")

    def labels_in(self, truth: Any) -> Iterable[str]:
        """Return the labels that a truth consists of."""
        return (truth,)

    def label_order(self, label: str) -> Any:
        """Return the key by which labels are sorted when the data names them."""
        return label

    def probe(self, text: str, pair: bool) -> dict[str, Any]:
        """Return an example without truth made of any text, to try a network or an export with."""
        return {"text_a": text, "text_b": text[::-1]} if pair else {"text": text}

    def plain(self, example: Example) -> Example:
        """Return an example with the same inputs that stands alone, so that a file can hold it; by default itself."""
        return example

    def perturbed(self, example: Example) -> tuple[str, ...]:
        """Return the fields that a test of robustness perturbs (``eval.stress``): texts, or lists of words."""
        return tuple(name for name in self.inputs(example) if self.words or name not in self.lists)

    def before_any_model(self, examples: Sequence[Example]) -> list[Answer]:
        """Return what is answered before a model is asked, as a first stage does; by default nothing."""
        del examples
        return []

    # ---- the network

    def outputs(self, labels: Sequence[str]) -> int:
        """Return the width of the last layer; 0 where the task does not say it."""
        return len(labels)

    def width(self, outputs: int, hidden_size: int, vocab_size: int) -> int:
        """Return how many numbers an output has, given those of a head, of a hidden state, and the words."""
        del hidden_size, vocab_size
        return outputs

    def reads_pairs(self, pair: bool) -> bool:
        """Return whether an input is two texts, for a task of pairs or not."""
        return pair

    def fits_head(self, labels: Sequence[str], problem_type: str | None) -> bool:
        """Return whether a head of ``auto_class`` may be one of this kind.

        Args:
            labels: Its labels.
            problem_type: What its config says of the kind.
        """
        del labels, problem_type
        return True

    def thresholds(self, labels: Sequence[str]) -> int:
        """Return how many thresholds predictions depend on, which can be chosen on examples."""
        del labels
        return 0

    def chosen_thresholds(
        self, spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]
    ) -> tuple[float, ...]:
        """Return the thresholds that are best for examples.

        Args:
            spec: What is asked.
            answers: A model's predictions for them, by any thresholds.
            examples: With their truths.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement chosen_thresholds")

    # ---- scores

    def metrics(self) -> tuple[Metric, ...]:
        """Return all metrics, in the order of reports."""
        raise NotImplementedError(f"{type(self).__name__} does not implement metrics")

    def default_metric(self, pair: bool) -> str:
        """Return the primary metric when none is named."""
        del pair
        return self.metric

    def unfit(self, metric: str, spec: Asks) -> str | None:
        """Say why one of the metrics cannot be computed for such labels or pairs; None if it can."""
        del metric, spec
        return None

    def expected(self, example: Example) -> Any:
        """Return the truth of an example as a metric of the user's own gets it."""
        return example[self.gold[-1]]

    def values(self, spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> Values:
        """Return a score of each example alone, ``[N]``, higher is better."""
        raise NotImplementedError(f"{type(self).__name__} does not implement values")

    def confidences(self, answers: Sequence[Answer], examples: Sequence[Example]) -> tuple[list[float], list[bool]]:
        """Return how sure each prediction is, and whether it is right; asked where ``calibrated``."""
        pairs = zip(answers, examples, strict=True)
        return [answer["probability"] for answer in answers], [a["label"] == example["label"] for a, example in pairs]

    def turned(
        self, labels: Sequence[str], before: Mapping[str, Any], now: Mapping[str, Any], output: Array
    ) -> Array | None:
        """Return by how much a model prefers its predictions to those that it gave before; None if it cannot tell.

        By default that is told of labels, and of places among outputs.

        Args:
            labels: Those of the task.
            before: What it predicted once.
            now: What it predicts now.
            output: The raw output behind that, ``[C]`` or ``[words, C]``.
        """
        if self.truth is None or self.truth not in before or self.truth not in now:
            return None
        rows = np.atleast_2d(np.asarray(output, dtype=np.float64))
        earlier, later = (list(self.labels_in(prediction[self.truth])) for prediction in (before, now))
        places = [labels.index(name) if name in labels else name for name in earlier]
        known = all(type(place) is int and 0 <= place < rows.shape[1] for place in places)
        if earlier == later or not known or not len(earlier) == len(later) == len(rows):
            return None
        return np.asarray(rows.max(axis=1) - rows[np.arange(len(rows)), np.array(places, dtype=np.int64)])

    def agreement(self, pairs: Sequence[tuple[Answer, Answer]]) -> dict[str, float]:
        """Return how alike the predictions of two models are, as shares or correlations."""
        raise NotImplementedError(f"{type(self).__name__} does not implement agreement")

    def condensed(self, spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> list[Answer]:
        """Return predictions with no more than ``values``, ``metrics`` and ``agreement`` read: what a record keeps."""
        del spec, examples
        return [{name: value for name, value in answer.items() if name not in self.unscored} for answer in answers]

    def told_apart(
        self, gold: Sequence[Example], answers: Sequence[Sequence[Answer]], examples: Sequence[Example] | None
    ) -> dict[int, list[str]]:
        """Return where models answer differently: the place of an example -> the truth and each answer in words.

        Args:
            gold: The truth of each example (see ``gold``).
            answers: Of each model, one an example.
            examples: The examples, where they are known.
        """
        found = {}
        for place, (truth, *given) in enumerate(zip(gold, *answers, strict=True)):
            example = examples[place] if examples else {}
            said = [self.said(answer, example) for answer in given]
            if len(set(said)) > 1:
                found[place] = [self.said({"truth": truth.get(self.truth or "")}, example), *said]
        return found

    def said(self, answer: Answer, example: Example) -> str:
        """Return an answer in words: what scores read of it. A truth comes as the only value."""
        del example
        return ", ".join(str(value) for name, value in answer.items() if name not in self.unscored)
