"""The ``evaluate`` block of a recipe: how the result is judged."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from compress.reading.base_block import Block
from eval.ranking.vector_index import IndexForm


class LatencyBlock(Block):
    """What latency is measured at.

    Attributes:
        batch: Batch sizes.
        lengths: Tokens of each input, or ``data`` for the lengths of the data itself.
        seconds: Time for each model at each batch size; twice as much if the rounds do not agree by then.
    """

    batch: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(1, 8, 32), min_length=1)
    lengths: Literal["data"] | Annotated[int, Field(ge=1)] = "data"
    seconds: float = Field(default=2.0, gt=0)


class EvaluateBlock(Block):
    """How the result is judged.

    Attributes:
        against: What it is compared with: ``teacher``, ``none``, or a model folder.
        margin: Loss of the score that still counts as no worse.
        split: The examples it is judged on; ``auto`` takes a labelled test split, else validation.
        select: The examples that choose epochs, thresholds and exports; ``auto`` takes validation if it is not judged
            on, else a part of the training examples (``eval.data.roles``). Scores on what also chose are marked as
            those of a selection and show no margin.
        latency: What latency is measured at; nothing leaves it out.
        baseline: Whether the same student is also trained on labels only, to see what the teacher brought.
        reference_exports: Whether the reference's own exports, float32 and int8, are measured too, if latency is: only
            against them does a speedup tell what compression brought, apart from the engine.
        memory: Whether the peak memory of each model is measured, in a new process; by default if latency is.
        stress: Whether the model, the export that the report leads with and their reference answer perturbed texts too:
            typos, casing, negation, length (``eval.stress``).
        attributions: Whether the model and its reference are asked which tokens of a text their predictions rest on
            (``teachers.attribution``); for one score of an input: classification, multilabel, regression.
        index: For retrieval: forms of the documents' index that every export is measured with too, or the model
            itself where there is none (``eval.ranking.vector_index``).
    """

    against: str = "teacher"
    margin: float = Field(default=0.01, ge=0)
    split: str = "auto"
    select: str = "auto"
    latency: LatencyBlock | None = Field(default_factory=LatencyBlock)
    baseline: bool = False
    reference_exports: bool = True
    memory: bool | None = None
    stress: bool = False
    attributions: bool = False
    index: tuple[IndexForm, ...] = ()

    @property
    def measures_memory(self) -> bool:
        """Whether peak memory is measured."""
        return self.latency is not None if self.memory is None else self.memory
