"""The ``training`` block of a recipe: plain values, so that a recipe is read without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from teachers.number_format import Precision
from teachers.renamed import RECORDED, RenamedFields, with_first_names

LATER = ("layer_decay", "unfreeze", "report_steps", "score_epochs", "average_checkpoints", "dropout")
"""Fields that were added later: at their defaults they are left out where a training is written down, so that records,
keys and checkpoints from before still fit."""
RECORDED_SECONDS = 120.0
"""Records say this where ``checkpoint_seconds`` has its default, which was this once; no weight depends on it."""


class Training(RenamedFields):
    """How weights are updated; the same block for teachers, students and every technique that trains.

    Attributes:
        epochs: Passes over the training examples; a fraction is allowed.
        max_steps: Stop after this many optimizer steps, whatever ``epochs`` says.
        learning_rate: Peak learning rate of AdamW.
        batch_size: Examples (windows, for long inputs) of one update, over all devices together.
        gradient_accumulation_steps: Pieces into which each batch is cut to save memory; the optimizer step is that of
            the whole batch, so ``batch_size`` stays the number of its examples (transformers counts those of a piece).
        schedule: Schedule of the learning rate after the warm-up: down to 0 in a straight line or along a cosine,
            constant, falling with the root of the optimizer steps (noam), or in a straight line to a 32nd
            (slanted_triangular).
        warmup_steps: Optimizer steps in which the rate rises from 0, or from a 32nd for slanted_triangular. Below 1 it
            is a share of all optimizer steps, otherwise their number.
        layer_decay: What the rate is multiplied by from each layer to the one below it: the head has the peak rate, the
            embeddings the lowest; 1 is the same rate everywhere, ULMFiT's is 0.3846. Layers that share weights are one.
        weight_decay: Decay of weight matrices; tensors of one axis (biases, normalisation gains) are never decayed.
        betas: Decay of AdamW's two moments.
        eps: AdamW's guard against division by zero.
        max_grad_norm: Gradients are scaled down to this norm; 0 switches it off.
        dropout: Probability of every dropout of the network while it is trained, in hidden states, attention and head;
            None takes what its config says, 0.1 for BERT. With 0 a training on a CPU is faster.
        group_by_length: Whether a batch holds examples of similar length.
        precision: Number format of the forward pass, and of the scores that choose an epoch; ``auto`` takes what
            ``accelerate launch --mixed_precision`` was given (``ACCELERATE_MIXED_PRECISION``); without it bf16 on a GPU
            that has it, fp32 elsewhere.
        freeze: Parts that stay as they are; a pooler is no part of the encoder, but of the head.
        unfreeze: Train the head first, then one more layer from the top at a time, the embeddings last: one more each
            ``epoch``, or evenly, so that all are trained after this part of all steps; None trains all at once.
        keep: Whether the epoch with the best validation score or the last one is returned.
        patience: Stop after this many epochs (or reports) without a better validation score; None never stops early.
        checkpoint_seconds: Time between checkpoints of an interruptible run, as long as they take at most 5% of it; 0
            writes one after every optimizer step.
        report_steps: Updates after which losses and scores are written down, beside the ends of epochs; for trainings
            whose epochs are long.
        score_epochs: Epochs after each of which the student is scored and losses are written down; more than 1 for
            trainings whose epochs are short. The last optimizer step is always scored.
        average_checkpoints: With ``keep: last``, return the mean of the weights after the last so many epochs (or
            reports) that are scored, or of all if there are fewer; 1 returns the last weights themselves. The last
            score in the history is that of the mean. Source: Vaswani et al. 2017, arXiv 1706.03762, section 6.1.

    Examples:
        >>> Training(epochs=3, learning_rate=1e-4, batch_size=16).schedule
        'linear'
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    renamed: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"accumulation": "gradient_accumulation_steps", "warmup": "warmup_steps"}
    )

    epochs: float = Field(default=3.0, gt=0, le=10_000)
    max_steps: int | None = Field(default=None, ge=1)
    learning_rate: float = Field(default=5e-5, gt=0, le=10)
    batch_size: int = Field(default=32, ge=1)
    gradient_accumulation_steps: int = Field(default=1, ge=1)
    schedule: Literal["linear", "cosine", "constant", "noam", "slanted_triangular"] = "linear"
    warmup_steps: float = Field(default=0.1, ge=0)
    layer_decay: float = Field(default=1.0, gt=0, le=1)
    weight_decay: float = Field(default=0.01, ge=0)
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = Field(default=1e-8, gt=0)
    max_grad_norm: float = Field(default=1.0, ge=0)
    dropout: float | None = Field(default=None, ge=0, lt=1)
    group_by_length: bool = True
    precision: Precision = "auto"
    freeze: tuple[Literal["embeddings", "encoder"], ...] = ()
    unfreeze: Literal["epoch"] | Annotated[float, Field(gt=0, le=1)] | None = None
    keep: Literal["best", "last"] = "best"
    patience: int | None = Field(default=None, ge=1)
    checkpoint_seconds: float = Field(default=30.0, ge=0)
    report_steps: int | None = Field(default=None, ge=1)
    score_epochs: int = Field(default=1, ge=1)
    average_checkpoints: int = Field(default=1, ge=1, le=100)

    @field_validator("warmup_steps")
    @classmethod
    def _share_or_number(cls, steps: float) -> float:
        if steps > 1 and not steps.is_integer():
            raise ValueError(f"got {steps:g}, must be a share below 1 or a whole number of optimizer steps")
        return steps

    @model_validator(mode="after")
    def _mean_of_the_last(self) -> Training:
        if self.average_checkpoints > 1 and self.keep == "best":
            raise ValueError(
                f"average_checkpoints: {self.average_checkpoints} returns the mean of the last epochs, and keep: best "
                "a single one; add keep: last"
            )
        return self

    @model_serializer(mode="wrap")
    def _as_recorded(self, dump: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        values: dict[str, Any] = dump(self)
        if not info.exclude_unset:  # what was said is kept, even if it is the default
            unchanged = {name for name in LATER if getattr(self, name) == type(self).model_fields[name].default}
            values = {name: value for name, value in values.items() if name not in unchanged}
        default = type(self).model_fields["checkpoint_seconds"].default
        if info.context and info.context.get(RECORDED) and values.get("checkpoint_seconds") == default:
            values["checkpoint_seconds"] = RECORDED_SECONDS
        return with_first_names(values, self.renamed, info.context)

    def steps_on(self, examples: int) -> int:
        """Return how many optimizer steps are made on so many examples, if each is one input."""
        total = math.ceil(self.epochs * self._batches(examples))
        return total if self.max_steps is None else min(total, self.max_steps)

    def as_long(self, examples: int, as_on: int) -> Training:
        """Return the block that makes on ``examples`` as many optimizer steps as this one does on ``as_on``.

        Epochs of fewer examples are shorter, and as many more are made; the student is scored as often. Where an
        example is several inputs, such as windows, both are numbers of inputs.

        Examples:
            >>> Training(epochs=2, batch_size=10).as_long(100, as_on=3000).epochs
            60.0
        """
        if self._batches(examples) == self._batches(as_on):
            return self
        times = self._batches(as_on) / self._batches(examples)
        update = {
            "epochs": math.ceil(self.epochs * self._batches(as_on)) / self._batches(examples),
            "max_steps": self.steps_on(as_on),
            "score_epochs": max(1, round(self.score_epochs * times)),
        }
        return self.model_copy(update=update)

    def _batches(self, examples: int) -> int:
        return max(1, math.ceil(examples / self.batch_size))


class WithTraining(BaseModel):
    """Base of the blocks with a ``training`` block whose fields may also be written beside the block's own.

    Attributes:
        training: How weights are updated.
    """

    training: Training = Field(default_factory=Training)

    @classmethod
    def beside(cls) -> tuple[str, ...]:
        """Return the fields of ``training`` that may be written beside the block's own."""
        return tuple(name for name in Training.model_fields if name not in cls.model_fields)

    @model_validator(mode="before")
    @classmethod
    def _gather_training(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        names = {*cls.beside(), *Training.renamed} - set(cls.model_fields)
        short = {key: values[key] for key in values if key in names}
        block = values.get("training", {})
        if not short or not isinstance(block, (dict, Training)):
            return values
        given = block.model_dump(exclude_unset=True) if isinstance(block, Training) else block
        own = {key: value for key, value in values.items() if key not in short}
        return own | {"training": {**given, **short}}


class AuxiliaryLM(BaseModel):
    """The weight of a language loss beside that of the task; see ``teachers.finetuning.auxiliary_lm``.

    Attributes:
        start: Weight at the first optimizer step.
        end: Weight at the last, which a training of a single step has from the start; it falls exponentially from one
            to the other.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    start: float = Field(default=0.2, gt=0)
    end: float = Field(default=0.1, gt=0)
