"""How fast a model is: milliseconds of a batch, and throughput, with candidates timed alternately.

Two models are timed alternately on the same sentences, round by round, so that whatever else the machine does in that
time slows both; a ratio of such rows is worth far more than one of rows taken at different times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator

from eval.cost.machine import device_name
from eval.cost.timing import interleave
from eval.encoding import Feature, Inputs, TextEncoder
from eval.errors import UserError
from eval.inference import Predictor, predict

Lengths = Literal["data"] | int
"""``data``: sentences at their own lengths, padded to the longest of their batch; a number: exactly so many tokens."""

MOST_EXAMPLES = 2048
"""Examples from the start of the data that are timed; they come round again when time is left."""


class LatencyPlan(BaseModel):
    """What to time.

    Attributes:
        batch: Batch sizes.
        lengths: Token lengths: ``data``, numbers, or several of these.
        seconds: Time for each model at each batch size and length.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    batch: tuple[int, ...] = Field(default=(1, 8, 32), min_length=1)
    lengths: tuple[Lengths, ...] = Field(default=("data",), min_length=1)
    seconds: float = Field(default=2.0, gt=0)

    @field_validator("batch", "lengths", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return (value,) if isinstance(value, int | str) else value

    @field_validator("batch", "lengths")
    @classmethod
    def _positive(cls, value: tuple[Any, ...]) -> tuple[Any, ...]:
        for number in value:
            if number != "data" and number < 1:
                raise ValueError(f"{number} must be 1 or more")
        return value


@dataclass(frozen=True)
class LatencyRow:
    """Timing of ``Predictor.forward`` from token ids, encoding and decoding apart.

    Attributes:
        name: The model.
        batch: Examples of a batch.
        lengths: ``data`` or the number of tokens.
        rounds: Timed batches.
        p50_ms: Median milliseconds of a batch.
        p95_ms: 95th percentile.
        p99_ms: 99th percentile; close to the maximum when there are fewer than 100 rounds.
        examples_per_second: Examples through the model in a second, over all rounds.
        tokens_per_second: Tokens without padding in a second, over all rounds.
        machine: The processor or accelerator.
    """

    name: str
    batch: int
    lengths: Lengths
    rounds: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    examples_per_second: float
    tokens_per_second: float
    machine: str


@dataclass(frozen=True)
class StreamRow:
    """Timing from texts to answers: encoding, batches of similar length, the model and decoding.

    Attributes:
        name: The model.
        batch: Rows of a batch.
        examples: Examples of one pass.
        passes: Timed passes; the figures are those of the median one.
        seconds: Seconds of a pass.
        examples_per_second: Examples answered in a second.
        machine: The processor or accelerator.
    """

    name: str
    batch: int
    examples: int
    passes: int
    seconds: float
    examples_per_second: float
    machine: str


def latency(
    predictors: Mapping[str, Predictor],
    examples: Sequence[Mapping[str, Any]],
    batch: Sequence[int] = (1, 8, 32),
    lengths: Lengths | Sequence[Lengths] = "data",
    seconds: float = 2.0,
) -> list[LatencyRow]:
    """Time models alternately on the same sentences.

    Args:
        predictors: Models by name.
        examples: Sentences, taken in this order.
        batch: Batch sizes.
        lengths: ``data``, a number of tokens, or several of these.
        seconds: Time for each model at each batch size and length.

    Returns:
        One row a length, batch size and model, in this order of nesting.

    Raises:
        UserError: No example or no model is given, or a fixed length is longer than a model takes.
    """
    wanted: Sequence[Lengths] = (lengths,) if isinstance(lengths, int | str) else lengths
    chosen = examples[:MOST_EXAMPLES]
    _check(predictors, chosen, wanted)
    rows = []
    for length in wanted:
        for size in batch:
            batches = {name: _batches(model.encoder, chosen, size, length) for name, model in predictors.items()}
            runs = {name: _runner(model, batches[name]) for name, model in predictors.items()}
            times = interleave(runs, seconds)
            for name, model in predictors.items():
                rows.append(_row(name, device_name(model), size, length, times[name], batches[name]))
    return rows


def _check(predictors: Mapping[str, Predictor], examples: Sequence[Any], lengths: Sequence[Lengths]) -> None:
    problems = []
    if not predictors:
        problems.append("latency: no model was given")
    if not len(examples):
        problems.append("latency: there are no examples to time on")
    problems += [problem for name, model in predictors.items() for problem in length_problems(name, model, lengths)]
    if problems:
        raise UserError(*problems)


def length_problems(name: str, model: Predictor, lengths: Sequence[Lengths]) -> list[str]:
    """Return a sentence for each fixed length that is longer than a model takes."""
    most = model.encoder.settings.max_length
    return [
        f"latency of {name}: {length} tokens are more than the {most} it takes; choose {most} or fewer"
        for length in lengths
        if length != "data" and length > most
    ]


@dataclass(frozen=True)
class _Batch:
    inputs: Inputs
    examples: int
    tokens: int


def _batches(encoder: TextEncoder, examples: Sequence[Mapping[str, Any]], size: int, length: Lengths) -> list[_Batch]:
    if length == "data":
        count = max(1, len(examples) // size)
        places = [[(first * size + step) % len(examples) for step in range(size)] for first in range(count)]
        groups = [encoder.encode([examples[place] for place in batch]) for batch in places]
    else:
        rows = _fixed(encoder.encode(examples), length)
        count = max(1, len(rows) // size)
        groups = [[rows[(first * size + step) % len(rows)] for step in range(size)] for first in range(count)]
    return [_Batch(encoder.collate(group), size, sum(len(row.ids) for row in group)) for group in groups]


def _fixed(features: Sequence[Feature], length: int) -> list[Feature]:
    """Cut the running text of all features into rows of exactly ``length`` tokens."""
    ids = [token for feature in features for token in feature.ids]
    ids = (ids or [0]) * -(-length // max(1, len(ids)))
    return [Feature(0, ids[start : start + length], [0] * length) for start in range(0, len(ids) - length + 1, length)]


def _runner(model: Predictor, batches: Sequence[_Batch]) -> Callable[[int], None]:
    def run(number: int) -> None:
        model.forward(batches[number % len(batches)].inputs)

    return run


def _row(
    name: str, device: str, size: int, length: Lengths, times: Sequence[float], batches: Sequence[_Batch]
) -> LatencyRow:
    total = sum(times)
    done = [batches[number % len(batches)] for number in range(len(times))]
    p50, p95, p99 = (float(value) * 1000 for value in np.percentile(times, [50, 95, 99]))
    return LatencyRow(
        name=name,
        batch=size,
        lengths=length,
        rounds=len(times),
        p50_ms=p50,
        p95_ms=p95,
        p99_ms=p99,
        examples_per_second=sum(part.examples for part in done) / total,
        tokens_per_second=sum(part.tokens for part in done) / total,
        machine=device,
    )


def stream(
    predictors: Mapping[str, Predictor],
    examples: Sequence[Mapping[str, Any]],
    batch: int = 32,
    seconds: float = 2.0,
) -> list[StreamRow]:
    """Time models alternately from texts to answers, in batches of similar length, as ``predict`` runs them.

    Args:
        predictors: Models by name.
        examples: Sentences; one pass answers the first ``MOST_EXAMPLES`` of them.
        batch: Rows of a batch.
        seconds: Time for each model.

    Raises:
        UserError: No example or no model is given.
    """
    chosen = examples[:MOST_EXAMPLES]
    _check(predictors, chosen, ())

    def passing(model: Predictor) -> Callable[[int], None]:
        def run(number: int) -> None:
            del number
            predict(model, chosen, batch)

        return run

    times = interleave({name: passing(model) for name, model in predictors.items()}, seconds)
    rows = []
    for name, taken in times.items():
        middle, device = float(np.median(taken)), device_name(predictors[name])
        rows.append(StreamRow(name, batch, len(chosen), len(taken), middle, len(chosen) / middle, device))
    return rows


def speedup(
    rows: Sequence[LatencyRow], name: str, against: str, batch: int = 1, lengths: Lengths | None = None
) -> float | None:
    """Return the speedup of ``name`` over ``against`` (ratio of medians), or None without both rows.

    Args:
        rows: What ``latency`` returned.
        name: The model.
        against: The model it is held against.
        batch: Batch size.
        lengths: ``data`` or a number of tokens; None takes the first there is.
    """
    found: dict[tuple[str, Lengths], float] = {}
    for row in rows:
        if row.batch == batch and lengths in (None, row.lengths):
            found.setdefault((row.name, row.lengths), row.p50_ms)
    for (model, length), median in found.items():
        reference = found.get((against, length))
        if model == name and reference is not None and median > 0:
            return reference / median
    return None
