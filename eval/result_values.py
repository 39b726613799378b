"""What was measured of one model on one split, as typed values, and the numbers that follow from them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from eval.attribution.agreement_rows import AttributionAgreement
from eval.cost.latency import LatencyRow, Lengths, speedup
from eval.cost.memory import PeakMemory
from eval.cost.size import Size
from eval.cost.timing import Median
from eval.predictions import Kept
from eval.proof.paired_statistics import Interval, McNemar, Number, Verdict
from eval.proof.role import Role
from eval.ranking.index_fields import Approximation, IndexSize
from eval.slices import Confusion, Slice
from eval.stress.stress_rows import Perturbed, Stressed
from eval.task import TaskSpec


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Comparison(_Part):
    """A candidate held against a reference on the same examples.

    Attributes:
        reference: Name of the reference.
        metric: What is compared; higher is better.
        margin: Loss that is allowed, in units of the metric.
        verdict: non-inferior, inferior or not shown, by the interval and the margin; selection where something of
            either model was chosen on these examples.
        difference: Candidate minus reference.
        retention: Candidate divided by reference.
        p_value: One-sided, of "the candidate is not better".
        noninferiority_p: One-sided, of "the candidate loses the margin or more"; None where the verdict is selection.
        confidence: Coverage of the intervals.
        resamples: Resamples behind the intervals of results of before; today's need none.
        seeds: Pairs of results that were pooled.
        covers: What the interval holds for: ``these models`` on other examples, or ``training anew`` with other seeds
            too, where there are several pairs.
        these_models: With several pairs, the interval for these very models; it is never the wider one.
        method: How the interval of the difference was found: ``score interval`` (``eval.proof.paired_difference``), or
            ``score interval by group``. Results of before may say ``paired bootstrap``.
        groups: How many groups the examples are in; None if they have none.
        examples_needed: Examples that would show the margin in four of five cases, if the models were equally good and
            differed as much as they do here; None where no number does, or the method does not tell.
        smallest_margin: The smallest margin that these examples would show as often.
        agreement: How alike the answers are (see ``eval.proof.paired_statistics.agreement``).
        mcnemar: Only for one pair whose per-example scores are 0 or 1.
        reference_scores: Scores of the reference.
        reference_size: Its size.
        reference_bytes: Bytes of its model files.
    """

    reference: str
    metric: str
    margin: float
    verdict: Verdict
    difference: Interval
    retention: Interval
    p_value: Number
    noninferiority_p: Number | None = None
    confidence: float
    resamples: int = 0
    seeds: int = 1
    covers: Literal["these models", "training anew"] = "these models"
    these_models: Interval | None = None
    method: Literal["paired bootstrap", "score interval", "score interval by group"] = "paired bootstrap"
    groups: int | None = None
    examples_needed: int | None = None
    smallest_margin: Number | None = None
    agreement: dict[str, Number] = {}
    mcnemar: McNemar | None = None
    reference_scores: dict[str, Number] = {}
    reference_size: Size | None = None
    reference_bytes: int | None = None


class ResultValues(_Part):
    """All that was measured of one model on one split.

    Attributes:
        name: The model.
        task: What was asked.
        source: Where the data came from.
        split: Which part of the data.
        digest: SHA-256 of the examples.
        role: ``final``, or ``selection`` if something was chosen on these very examples (``eval.proof.role``); None in
            results of earlier versions.
        chosen_on: What was chosen on them -> their digest.
        examples: How many there were.
        scores: Metrics by name; the one that decides is first.
        calibration_error: Expected calibration error (classification).
        slices: Scores of parts of the data.
        confusion: What was taken for what (classification).
        comparison: Against the reference, if one was given.
        stress: Scores and agreement on perturbed texts, the clean ones first, if they were asked for.
        stress_seed: Seed of the rules that perturbed them.
        attributions: How alike this model and its reference weigh the words of a text, if it was asked for.
        size: Parameters, bytes and multiply-accumulates, if the model knows them.
        file_bytes: Bytes of the model files in its folder.
        folder_bytes: Bytes of the whole folder.
        index: What the index of the documents takes, where they were held in another form than float32 vectors.
        approximation: What an approximate search of that index finds of what an exact one does.
        layers: Layers that an example ran through, on average, of a model with early exits.
        latency: Timings of this model and of its references, taken alternately.
        same_engine: Name of the reference's own export for the engine and number format of this one, which ``latency``
            holds too: what a user has without compression.
        memory: Peak memory of a fresh process that loads the model and answers some of the examples.
        no_memory: Why there is no ``memory``; None if it was not asked for.
        seconds: Seconds to answer the split once.
        machine: See ``eval.cost.machine.machine``.
        seed: Which examples are put together where there are too many to leave out each.
        training_seed: Seed that the model was trained with; None if it does not say.
        created: Time of the measurement, UTC.
        made_from: Digest of all that the measurement depends on, where whoever asked for it keeps results.
        format: Version of this file's form.
        predictions: SHA-256 of ``predictions.jsonl``.
        kept: The content of ``predictions.jsonl``; None if it was not loaded.
        perturbed_predictions: SHA-256 of ``perturbed.jsonl``.
        perturbed: The content of ``perturbed.jsonl``, the answers behind ``stress``.
    """

    name: str
    task: TaskSpec
    source: str = ""
    split: str
    digest: str
    role: Role | None = None
    chosen_on: dict[str, str] = {}
    examples: int
    scores: dict[str, Number]
    calibration_error: Number | None = None
    slices: tuple[Slice, ...] = ()
    confusion: Confusion | None = None
    comparison: Comparison | None = None
    # Left out of files where it was not asked for, so that those of results of before stay what they were.
    stress: tuple[Stressed, ...] = Field(default=(), exclude_if=lambda value: not value)
    stress_seed: int | None = Field(default=None, exclude_if=lambda value: value is None)
    attributions: AttributionAgreement | None = Field(default=None, exclude_if=lambda value: value is None)
    size: Size | None = None
    file_bytes: int | None = None
    folder_bytes: int | None = None
    index: IndexSize | None = Field(default=None, exclude_if=lambda value: value is None)
    approximation: Approximation | None = Field(default=None, exclude_if=lambda value: value is None)
    layers: float | None = None
    latency: tuple[LatencyRow, ...] = ()
    same_engine: str | None = None
    memory: PeakMemory | None = None
    no_memory: str | None = None
    seconds: float = 0.0
    machine: dict[str, Any] = {}
    seed: int = 13
    training_seed: int | None = None
    created: str = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    made_from: str | None = None
    format: Literal[1] = 1
    predictions: str | None = None
    kept: Kept | None = Field(default=None, exclude=True, repr=False)
    perturbed_predictions: str | None = Field(default=None, exclude_if=lambda value: value is None)
    perturbed: tuple[Perturbed, ...] = Field(default=(), exclude=True, repr=False)

    @property
    def score(self) -> float:
        """The primary metric."""
        return next(iter(self.scores.values()))

    @property
    def metric(self) -> str:
        """Name of the primary metric."""
        return next(iter(self.scores))

    @property
    def bytes(self) -> int | None:
        """Bytes of the model files, or of the tensors when there is no folder."""
        return self.file_bytes if self.file_bytes else self.size.bytes if self.size else None

    def row(self, batch: int = 1, lengths: Lengths | None = None) -> LatencyRow | None:
        """Return this model's timing at a batch size; the first length there is when none is named."""
        rows = (row for row in self.latency if (row.name, row.batch) == (self.name, batch))
        return next((row for row in rows if lengths in (None, row.lengths)), None)

    def speedup(self, batch: int = 1) -> float | None:
        """Return the speedup over the reference, by timings taken alternately."""
        found = self.speed_over(self.comparison.reference, batch) if self.comparison else None
        return found.value if found else None

    def speed_over(self, name: str, batch: int = 1) -> Median | None:
        """Return the speedup over one of the models that were timed alternately with this one, with its interval."""
        return speedup(self.latency, self.name, name, batch)

    def shrinkage(self) -> float | None:
        """Return how many times smaller than the reference this model is, in bytes of the same kind."""
        if self.comparison is None:
            return None
        if self.file_bytes and self.comparison.reference_bytes:
            return self.comparison.reference_bytes / self.file_bytes
        size, reference = self.size, self.comparison.reference_size
        return reference.bytes / size.bytes if size and reference and size.bytes else None
