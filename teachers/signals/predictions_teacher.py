"""A file of predictions as teacher: what answered the inputs is not there, only what it said of each."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from tokenizers import Tokenizer, models

from eval.data.loading import Task
from eval.encoding import Array, EncoderSettings, Feature, Inputs, TextEncoder
from eval.errors import UserError
from eval.example_digests import input_digest
from eval.inference import Answer, predict
from eval.kinds.kind_registry import kind_of
from eval.kinds.values import shown
from eval.naming import public_name
from eval.task import Example, Examples, TaskSpec
from teachers.data.encoded_dataset import Batch, EncodedDataset
from teachers.signals.hooks import NOTHING, Signals, SignalSpec
from teachers.signals.logits_alone import LogitsAlone
from teachers.signals.model_teacher import Reader
from teachers.signals.predictions_file import TOLERANCE, PredictionSource, read_predictions

logger = logging.getLogger("teachers.signals.predictions_teacher")

FEW = 5
"""Examples or rows that a message shows."""


@dataclass(frozen=True)
class PredictionsTeacher(LogitsAlone):
    """Predictions that came from anywhere, in the place of a network: they give logits alone.

    It is a ``Predictor`` as well, so that its score can be measured where it answers all examples; it is never timed.

    Attributes:
        spec: What is asked.
        logits: ``[C]``, ``[words, C]`` (tagging) or ``[1]`` (regression), by the digest of the input that they answer.
        source: What messages call the predictions.
        missing: Whether examples to learn from that have no prediction are refused, or left out.
        name: What reports call it.
    """

    spec: TaskSpec
    logits: Mapping[str, Array] = field(repr=False)
    source: str = "predictions"
    missing: Literal["refuse", "drop"] = "refuse"
    name: str = field(default="teacher", kw_only=True)
    timed: ClassVar[bool] = False

    @classmethod
    def read_from(
        cls,
        source: PredictionSource,
        task: Task,
        *,
        missing: Literal["refuse", "drop"] = "refuse",
        unmatched: Literal["refuse", "ignore"] = "refuse",
        tolerance: float = TOLERANCE,
        columns: Mapping[str, str] | None = None,
        label_map: Mapping[str, str] | None = None,
        more: Iterable[Example] = (),
    ) -> PredictionsTeacher:
        """Read predictions and find the examples that they answer by what stands in them, not by their order.

        Args:
            source: A file of any format that data has, or its rows as dicts (docs/data.md).
            task: The task with its examples.
            missing: What becomes of examples to learn from without a prediction (see ``covered``).
            unmatched: Whether rows that answer no example are an error.
            tolerance: By how much a sum of probabilities may differ from 1.
            columns: The column of an input field, where it has a name of its own.
            label_map: New name of each label in the file.
            more: Further examples that may be answered, such as unlabelled text.

        Raises:
            UserError: With every row that is no prediction of this task, or that answers no example.

        Examples:
            >>> from eval import Task
            >>> films = [{"text": "a warm film", "label": "good"}, {"text": "a dull film", "label": "bad"}]
            >>> task = Task.from_list({"train": films})
            >>> votes = {"text": "a dull film", "votes": ["bad", "bad", "good"]}
            >>> teacher = PredictionsTeacher.read_from([votes, {"text": "a warm film", "label": "good"}], task)
            >>> [answer["label"] for answer in teacher.answers(task.train)]
            ['good', 'bad']
        """
        logits, places = read_predictions(source, task.spec, columns=columns, label_map=label_map, tolerance=tolerance)
        known = {_key(task.spec, example) for split in (*task.splits.values(), more) for example in split}
        name = public_name(str(source)) if isinstance(source, str | Path) else "predictions"
        strange = [place for key, place in places.items() if key not in known]
        if strange and unmatched == "refuse":
            raise UserError(
                f"{name}: {len(strange):,} of {len(places):,} inputs match no example of the data, such as "
                f"{', '.join(strange[:FEW])}; their {' and '.join(kind_of(task.spec.kind).given(task.spec.pair))} must "
                "be equal letter by letter; unmatched: ignore leaves them out"
            )
        if strange:
            logger.info("%s: %d of %d inputs match no example and are left out", name, len(strange), len(places))
        return cls(task.spec, {key: own for key, own in logits.items() if key in known}, name, missing)

    def lacking(self, examples: Iterable[Example]) -> list[Example]:
        """Return the examples that have no prediction."""
        return [example for example in examples if _key(self.spec, example) not in self.logits]

    def covered(self, examples: Examples) -> Examples:
        """Return the examples that have a prediction, to learn from.

        Raises:
            UserError: Some have none and ``missing`` is ``refuse``, or none has one.
        """
        lacking = self.lacking(examples)
        if not lacking:
            return examples
        if self.missing == "refuse" or len(lacking) == len(examples):
            raise UserError(self.uncovered(examples, lacking))
        logger.info("%s: %d of %d examples of %s are left out: no prediction", *self._counts(examples, lacking))
        left = {_key(self.spec, example) for example in lacking}
        rest = [example for example in examples if _key(self.spec, example) not in left]
        return Examples(rest, examples.name, examples.skipped)

    def _counts(self, examples: Examples, lacking: Sequence[Example]) -> tuple[str, int, int, str]:
        return self.source, len(lacking), len(examples), examples.name

    def uncovered(self, examples: Examples, lacking: Sequence[Example]) -> str:
        """Return how many examples have no prediction, which, and what to do."""
        source, count, of, name = self._counts(examples, lacking)
        some = ", ".join(shown(next(iter(example.values()))) for example in islice(lacking, FEW))
        cure = "" if count == of or self.missing == "drop" else ", or leave them out with missing: drop"
        return (
            f"{source}: {count:,} of {of:,} examples of {name} have no prediction, such as {some}; add them (the text "
            f"must be equal letter by letter){cure}"
        )

    @cached_property
    def digest(self) -> str:
        """SHA-256 over inputs and logits, whatever their order was."""
        found = hashlib.sha256("|".join(("predictions", *self.spec.labels)).encode())
        for key in sorted(self.logits):
            found.update(key.encode() + self.logits[key].tobytes())
        return found.hexdigest()

    @property
    def chosen_on(self) -> dict[str, str]:
        """Nothing is known of what the predictions were chosen on."""
        return {}

    def refusal(self, what: str) -> str:
        """Return why there is none of ``what``, and what to do instead."""
        return (
            f"the teacher is a file of predictions ({self.source}), which has no {what}, only what it says of each "
            "input; use distill.logits, distill.bilstm or distill.static, or name a model as the teacher"
        )

    def kept_in(self, cache: Path) -> PredictionsTeacher:
        """Return itself: there is nothing to compute or to keep."""
        del cache
        return self

    def read(self, rows: EncodedDataset, wanted: SignalSpec = NOTHING) -> Reader:
        """Return a reader of the logits of these rows.

        Raises:
            UserError: If more than logits is wanted, the student answers something else, or a row has no prediction.
        """
        self.refuse_more(wanted)
        if rows.spec.labels != self.spec.labels or rows.spec.kind != self.spec.kind:
            raise UserError(
                f"{self.source}: predicts {list(self.spec.labels) or self.spec.kind}, the student "
                f"{list(rows.spec.labels) or rows.spec.kind}; they must be the same"
            )
        if lacking := self.lacking(rows.examples):
            raise UserError(self.uncovered(rows.examples, lacking))
        return PredictionsReader(rows, [self.logits[_key(self.spec, example)] for example in rows.examples])

    def answers(self, examples: Examples) -> list[Answer]:
        """Return what the predictions answer; none unless there is one for each example."""
        return [] if self.lacking(examples) else predict(self, examples).answers

    @cached_property
    def encoder(self) -> TextEncoder:
        """What finds the prediction of an example."""
        return LookUp(self.spec, {key: number for number, key in enumerate(self.logits)})

    def forward(self, inputs: Inputs) -> Array:
        """Return the logits of the predictions that the encoder found, as float32."""
        table, ids = list(self.logits.values()), inputs["input_ids"]
        if not kind_of(self.spec.kind).words:
            return np.stack([table[number] for number in ids[:, 0]])
        found = np.zeros((*ids.shape, self.spec.outputs), dtype=np.float32)
        for row, number in enumerate(ids[:, 0]):
            found[row, : len(table[number])] = table[number]
        return found


class PredictionsReader:
    """Gives the logits of a batch of known rows; of words, at the first token of each.

    Args:
        rows: The rows.
        logits: One an example of them, in order.
    """

    def __init__(self, rows: EncodedDataset, logits: Sequence[Array]) -> None:
        self.rows, self.logits = rows, logits

    def __call__(self, batch: Batch) -> Signals:
        """Return the logits of these rows, 0 where nothing is predicted."""
        length = batch.inputs["input_ids"].shape[1]
        found = np.stack([self._padded(self.rows.features[row], length) for row in batch.rows.tolist()])
        return Signals(torch.from_numpy(found).to(batch.rows.device))

    def _padded(self, feature: Feature, length: int) -> Array:
        own = self.logits[feature.example]
        if own.ndim == 1:
            return own
        full = np.zeros((length, own.shape[-1]), dtype=np.float32)
        start = self.rows.encoder.place(len(feature.ids), length).start
        for place, word in enumerate(feature.words or ()):
            if word >= 0:
                full[start + place] = own[word]
        return full


class LookUp(TextEncoder):
    """Reads an example as the number of its prediction, so that predictions can be measured as a network is.

    Args:
        spec: What is asked.
        numbers: Number of each prediction by the digest of its input.
    """

    def __init__(self, spec: TaskSpec, numbers: Mapping[str, int]) -> None:
        how = {name: getattr(spec, name) for name in ("labels", "pair", "max_length", "thresholds")}
        words = Tokenizer(models.WordLevel({"": 0}, unk_token=""))
        super().__init__(words, EncoderSettings(spec.kind, **how, inputs=("input_ids",)))
        self.spec, self.numbers = spec, numbers

    def encode(self, examples: Sequence[Mapping[str, Any]]) -> list[Feature]:
        """Return a feature for each example; its ids are the number of its prediction, once for each word.

        Raises:
            UserError: Examples have no prediction.
        """
        found = [self.numbers.get(_key(self.spec, example)) for example in examples]
        if None in found:
            raise UserError(f"predictions: {found.count(None):,} of {len(found):,} examples have none; add them")
        features = []
        for index, (example, number) in enumerate(zip(examples, found, strict=True)):
            words = len(example["tokens"]) if self.kind.words else 1
            of_words = list(range(words)) if self.kind.words else None
            features.append(Feature(index, [int(number or 0)] * words, [0] * words, of_words))
        return features


def _key(spec: TaskSpec, example: Example) -> str:
    return input_digest(example, kind_of(spec.kind).gold)
