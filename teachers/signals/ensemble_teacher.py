"""Several networks as one teacher: the mean of their probabilities, distilled like any other logits."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eval.cost.size import Size
from eval.encoding import Array, EncoderSettings, Feature, Inputs, TextEncoder
from eval.errors import UserError
from eval.inference import Answer, predict
from eval.kinds.kind_registry import kind_of
from eval.task import Examples
from teachers.data.encoded_dataset import Batch, EncodedDataset
from teachers.number_format import Precision
from teachers.signals.hooks import NOTHING, Signals, SignalSpec
from teachers.signals.logits_alone import LogitsAlone
from teachers.signals.model_teacher import ModelTeacher, Reader, TeacherSource
from teachers.signals.same_tokens import cuts_alike, reads_alike
from teachers.signals.shared_teacher import SharedTeacher
from teachers.taskmodel import TaskModel


@dataclass(frozen=True)
class EnsembleTeacher(LogitsAlone):
    """Several networks that teach together (Liu, He, Chen, Gao 2019, arXiv 1904.09482).

    Its logits are ``log Σ_k w_k · softmax(z_k)``, so that their softmax is exactly the mean ``Q`` of the members'
    probabilities; for regression and multiple-choice they are the mean score. It is also a ``Predictor``, so it is
    measured as one model whose size is that of all members together.

    Attributes:
        teachers: The members, each with its own cache of signals. Only logits are shared: members may differ in
            family, depth and width, and for classification and regression in tokenizer too.
        weights: One a member, above 0; scaled to a sum of 1. None weighs all alike.
        name: What reports call it.

    Raises:
        UserError: If there is no member, the weights do not fit, or the members answer different things.
    """

    teachers: tuple[ModelTeacher, ...]
    weights: tuple[float, ...] | None = None
    name: str = field(default="teacher", kw_only=True)

    def __post_init__(self) -> None:
        """Refuse members that cannot be averaged."""
        problems = [] if self.teachers else ["an ensemble needs at least one teacher"]
        if self.weights is not None:
            problems += weight_problems(self.weights, len(self.teachers))
        specs = [teacher.model.task for teacher in self.teachers]
        for teacher, spec in list(zip(self.teachers, specs, strict=True))[1:]:
            if (spec.kind, spec.labels) != (specs[0].kind, specs[0].labels):
                problems.append(
                    f"{teacher.model.name} answers {list(spec.labels) or spec.kind} and {self.teachers[0].model.name} "
                    f"{list(specs[0].labels) or specs[0].kind}; the members of an ensemble must answer the same"
                )
        if not problems and kind_of(specs[0].kind).vectors:
            problems.append("an ensemble gives no embeddings: vectors of different models have no mean; name one model")
        if not problems and specs[0].per_token and not self._cut_alike:
            problems.append(
                f"the members of the ensemble tokenize differently, so the tokens of a {specs[0].kind} task cannot be "
                "paired; take members with one tokenizer and one max_length"
            )
        if problems:
            raise UserError(*problems)

    @classmethod
    def of(cls, models: Sequence[TaskModel], precision: Precision = "auto") -> EnsembleTeacher:
        """Return the ensemble of these models, all weighing alike; see ``ModelTeacher`` for the precision."""
        return cls(tuple(ModelTeacher(model, precision=precision) for model in models))

    def kept_in(self, cache: Path) -> EnsembleTeacher:
        """Return the same ensemble, whose members' signals are kept in a folder of the caller's."""
        return replace(self, teachers=tuple(teacher.kept_in(cache) for teacher in self.teachers))

    @property
    def _models(self) -> list[TaskModel]:
        return [teacher.model for teacher in self.teachers]

    @cached_property
    def _alike(self) -> bool:
        first, *others = self._models
        return all(reads_alike(first.encoder, other.encoder) for other in others)

    @property
    def _cut_alike(self) -> bool:
        first, *others = self._models
        return all(cuts_alike(first.encoder, other.encoder) for other in others)

    @property
    def _shares(self) -> tuple[float, ...]:
        return shares(self.weights, len(self))

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the members' digests and the weights."""
        words = ["ensemble", *(teacher.digest for teacher in self.teachers), *map(repr, self._shares)]
        return hashlib.sha256("|".join(words).encode()).hexdigest()

    @property
    def chosen_on(self) -> dict[str, str]:
        """What of the members was chosen -> digest of the examples it was chosen on."""
        models = (teacher.model for teacher in self.teachers)
        return {f"{what}, {model.name}": digest for model in models for what, digest in model.chosen_on.items()}

    def __len__(self) -> int:
        """How many members there are."""
        return len(self.teachers)

    def refusal(self, what: str) -> str:
        """Return why there is none of ``what``, and what to do instead."""
        return (
            f"an ensemble of {len(self)} teachers has no {what} of its own, only logits; use distill.ensemble or "
            "distill.logits, or name one model as the teacher"
        )

    def read(self, rows: EncodedDataset, wanted: SignalSpec = NOTHING) -> Reader:
        """Return a reader of the combined logits; each member's own are computed once and kept on disk.

        Raises:
            UserError: If more than logits is wanted, or a member cannot teach these rows.
        """
        self.refuse_more(wanted)
        readers = [teacher.read(rows) for teacher in self.teachers]

        def signals(batch: Batch) -> Signals:
            return Signals(self._combined([reader(batch).logits for reader in readers], batch.mask))

        return signals

    def _combined(self, logits: Sequence[Tensor], mask: Tensor) -> Tensor:
        return combined(self._models[0].task.kind, logits, self._shares, mask)

    def answers(self, examples: Examples) -> list[Answer]:
        """Return the answers that the combined logits give."""
        return predict(self, examples).answers

    @cached_property
    def encoder(self) -> TextEncoder:
        """How examples become inputs: as the members do it, or side by side where they differ."""
        encoders = [model.encoder for model in self._models]
        if self._alike:
            return TextEncoder(encoders[0].tokenizer, shared_settings(encoders))
        return JointEncoder(encoders)

    def forward(self, inputs: Inputs) -> Array:
        """Return the combined logits as float32, shaped like a member's."""
        parts = [inputs] * len(self) if self._alike else [own_inputs(inputs, number) for number in range(len(self))]
        logits = [torch.from_numpy(model.forward(part)) for model, part in zip(self._models, parts, strict=True)]
        return self._combined(logits, torch.from_numpy(parts[0]["attention_mask"])).numpy()

    def size(self) -> Size:
        """Return the size of all members together, each of which has to run for an answer."""
        sizes = [model.size() for model in self._models]
        macs = [size.macs for size in sizes if size.macs is not None]
        return Size(
            parameters=sum(size.parameters for size in sizes),
            nonzero=sum(size.nonzero for size in sizes),
            bytes=sum(size.bytes for size in sizes),
            macs=sum(macs) if len(macs) == len(sizes) else None,
            macs_length=min(size.macs_length for size in sizes),
        )


def weighted(teacher: TeacherSource, weights: tuple[float, ...]) -> EnsembleTeacher:
    """Return an ensemble with other weights.

    Raises:
        UserError: If the teacher is a single model, or the weights do not fit.
    """
    inner = teacher.teacher if isinstance(teacher, SharedTeacher) else teacher
    if not isinstance(inner, EnsembleTeacher):
        raise UserError("weights: the teacher is a single model; leave them out, or name several models")
    return replace(inner, weights=weights)


def shares(weights: Sequence[float] | None, members: int) -> tuple[float, ...]:
    """Return the weights scaled to a sum of 1; None weighs all alike."""
    given = weights or (1.0,) * members
    return tuple(weight / sum(given) for weight in given)


def weight_problems(weights: Sequence[float], members: int) -> list[str]:
    """Return what makes these weights useless for so many members, one sentence at most."""
    if len(weights) != members or not all(0 < weight < float("inf") for weight in weights):
        return [f"weights {list(weights)}: needs {members} numbers above 0, one for each teacher of the ensemble"]
    return []


def combined(kind: str, logits: Sequence[Tensor], weights: Sequence[float], mask: Tensor) -> Tensor:
    """Return the log of the weighted mean of the members' probabilities, or their weighted mean score.

    A score is what regression and each choice of multiple-choice have.

    Args:
        kind: ``qa`` has probabilities over the tokens that are no padding, every other kind over classes.
        logits: ``[B, C]``, ``[B, L, C]`` (tagging, masked-lm) or ``[B, L, 2]`` (qa), one of a member.
        weights: One a member, with a sum of 1.
        mask: ``[B, L]``, 0 for padding.
    """
    stacked = torch.stack([member.float() for member in logits])
    scale = stacked.new_tensor(weights).reshape(-1, *[1] * (stacked.ndim - 1))
    return kind_of(kind).combined(stacked, scale, mask)


@dataclass(slots=True)
class JointFeature(Feature):
    """One text as every member of an ensemble reads it; as a feature it is the first member's."""

    members: tuple[Feature, ...] = ()


class JointEncoder(TextEncoder):
    """Reads every text with several tokenizers; the arrays of member ``k`` are named ``k.input_ids`` and so on.

    Args:
        encoders: One a member; each must give as many rows as the others. Their thresholds are averaged.
    """

    def __init__(self, encoders: Sequence[TextEncoder]) -> None:
        super().__init__(encoders[0].tokenizer, shared_settings(encoders))
        self.encoders = encoders

    def encode(self, examples: Sequence[Mapping[str, Any]]) -> list[Feature]:
        """Return the first member's features, each with those of all members."""
        rows = zip(*(encoder.encode(examples) for encoder in self.encoders), strict=True)
        return [
            JointFeature(**{each.name: getattr(own[0], each.name) for each in fields(own[0])}, members=own)
            for own in rows
        ]

    def collate(self, features: Sequence[Feature], multiple_of: int = 1) -> Inputs:
        """Pad and stack each member's features by themselves."""
        found: dict[str, Array] = {}
        for number, encoder in enumerate(self.encoders):
            own = [self._of_member(feature, number) for feature in features]
            arrays = encoder.collate(own, multiple_of)
            found |= {f"{number}.{name}": array for name, array in arrays.items()}
        return found

    def _of_member(self, feature: Feature, number: int) -> Feature:
        if isinstance(feature, JointFeature):
            return feature.members[number]
        # Rows of a fixed length, synthetic, for timing: any tokens do that the member knows.
        known = self.encoders[number].tokenizer.get_vocab_size()
        return Feature(feature.example, [token % known for token in feature.ids], feature.type_ids)


def shared_settings(encoders: Sequence[TextEncoder]) -> EncoderSettings:
    """Return the settings of the first member, with the mean of the thresholds of all, where all have some."""
    members = [encoder.settings.thresholds for encoder in encoders]
    mean = tuple(np.mean(members, axis=0).tolist()) if all(members) else ()
    return replace(encoders[0].settings, thresholds=mean)


def own_inputs(inputs: Inputs, number: int) -> dict[str, Array]:
    """Return the arrays of one member from those of a ``JointEncoder``."""
    prefix = f"{number}."
    return {name.removeprefix(prefix): array for name, array in inputs.items() if name.startswith(prefix)}
