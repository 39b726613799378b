"""How fast a model is: milliseconds of a batch, and throughput, with candidates timed alternately.

Models are timed alternately on the same sentences, round by round and in a random order in each, so that whatever else
the machine does in that time slows all of them; a ratio is the median of the ratios of the same rounds. Rows taken at
different times, or with different numbers of threads, give no ratio.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator

from eval.cost.machine import device_name, engine_name, load_average, threads_of, usable_cores
from eval.cost.timing import STEADY, Median, Times, interleave, median_interval, paired_ratio, spread
from eval.encoding import Feature, Inputs, TextEncoder
from eval.errors import UserError
from eval.inference import Predictor, predict_in_place

Lengths = Literal["data"] | int
"""``data``: sentences at their own lengths, padded to the longest of their batch; a number: exactly so many tokens."""

MOST_EXAMPLES = 2048
"""Examples from the start of the data that are timed; they come round again when time is left."""
TAIL = 10
"""Queries that a percentile needs above it: 10 / (1 - p) in all, so 200 for p95 and 1,000 for p99."""


class LatencyPlan(BaseModel):
    """What to time.

    Attributes:
        batch: Batch sizes.
        lengths: Token lengths: ``data``, numbers, or several of these.
        seconds: Time for each model at each batch size and length; twice as much if the rounds do not agree by then.
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
    """Timing of ``Predictor.forward``, or of ``write``, from token ids, encoding and decoding apart.

    Attributes:
        name: The model.
        batch: Examples of a batch.
        lengths: ``data`` or the number of tokens.
        rounds: Rounds; in each the model ran one batch or more, whose median is the value of the round.
        p50_ms: Median over rounds, in milliseconds of a batch.
        p95_ms: 95th percentile over all queries; None with too few of them (``TAIL``).
        p99_ms: 99th percentile; likewise.
        examples_per_second: Examples through the model in a second, over all rounds.
        tokens_per_second: Tokens without padding in a second, over all rounds.
        machine: The processor or accelerator.
        queries: Timed batches. None, like all that follows, in a row of an earlier version.
        round_ms: The value of each round; rows that were timed alternately have their rounds in common.
        iqr: Interquartile range of ``round_ms`` relative to its median.
        settled: Whether that is below ``eval.cost.timing.STEADY``; else the time was over first.
        threads: Threads of one product; None where the model does not say.
        engine: What ran it, such as ``eager torch`` or ``onnx int8``; None where the model does not say.
        cpus: Processors that this process may use.
        load: Load average of the machine in the minute before and in the last minute of the timing.
    """

    name: str
    batch: int
    lengths: Lengths
    rounds: int
    p50_ms: float
    p95_ms: float | None
    p99_ms: float | None
    examples_per_second: float
    tokens_per_second: float
    machine: str
    queries: int | None = None
    round_ms: tuple[float, ...] = ()
    iqr: float | None = None
    settled: bool | None = None
    threads: int | None = None
    engine: str | None = None
    cpus: int | None = None
    load: tuple[float, float] | None = None

    @property
    def median(self) -> Median | None:
        """The median of the rounds with its interval, in milliseconds; None in a row of an earlier version."""
        return median_interval(self.round_ms) if self.round_ms else None


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
        pass_seconds: Seconds of every pass; rows that were timed alternately have their passes in common.
        threads: Threads of one product; None where the model does not say.
        engine: What ran it; None where the model does not say.
    """

    name: str
    batch: int
    examples: int
    passes: int
    seconds: float
    examples_per_second: float
    machine: str
    pass_seconds: tuple[float, ...] = ()
    threads: int | None = None
    engine: str | None = None


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
        examples: Sentences; those that stand together form a batch.
        batch: Batch sizes.
        lengths: ``data``, a number of tokens, or several of these.
        seconds: Time for each model at each batch size and length; see ``eval.cost.timing.interleave``.

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
            groups = _by_length(next(iter(predictors.values())).encoder, chosen, size) if length == "data" else []
            batches = {
                name: _fixed_batches(model.encoder, chosen, size, length)
                if length != "data"
                else [_batch(model.encoder, model.encoder.encode(group), size) for group in groups]
                for name, model in predictors.items()
            }
            before = load_average()
            runs = {name: _runner(model, batches[name]) for name, model in predictors.items()}
            tokens = "" if length == "data" else f", {length} tokens"
            times = interleave(runs, seconds, name=f"timing, batch size {size}{tokens}")
            load = (before, load_average())
            for name, model in predictors.items():
                rows.append(_row(name, model, size, length, times[name], batches[name], load))
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


def _by_length(encoder: TextEncoder, examples: Sequence[Any], size: int) -> list[list[Any]]:
    """Return the batches of examples, each of neighbours in the data, in the order of their tokens."""
    count = max(1, len(examples) // size)
    groups = [[examples[(first * size + step) % len(examples)] for step in range(size)] for first in range(count)]
    return sorted(groups, key=lambda group: sum(len(feature.ids) for feature in encoder.encode(group)))


def _fixed_batches(encoder: TextEncoder, examples: Sequence[Any], size: int, length: int) -> list[_Batch]:
    rows = _fixed(encoder.encode(examples), length)
    count = max(1, len(rows) // size)
    return [
        _batch(encoder, [rows[(first * size + step) % len(rows)] for step in range(size)], size)
        for first in range(count)
    ]


def _batch(encoder: TextEncoder, features: Sequence[Feature], size: int) -> _Batch:
    return _Batch(encoder.collate(features), size, sum(len(feature.ids) for feature in features))


GOLDEN = (5**0.5 - 1) / 2


def _place(number: int, count: int) -> int:
    """Return which of ``count`` batches in the order of their lengths comes next.

    Steps of the golden ratio spread any few runs in a row evenly over short and long batches, so that rounds are alike.
    """
    return int(number * GOLDEN % 1 * count)


def _fixed(features: Sequence[Feature], length: int) -> list[Feature]:
    """Cut the running text of all features into rows of exactly ``length`` tokens."""
    ids = [token for feature in features for token in feature.ids]
    ids = (ids or [0]) * -(-length // max(1, len(ids)))
    return [Feature(0, ids[start : start + length], [0] * length) for start in range(0, len(ids) - length + 1, length)]


def _runner(model: Predictor, batches: Sequence[_Batch]) -> Callable[[int], None]:
    answer: Callable[[Inputs], Any] = (
        getattr(model, "write", model.forward) if model.encoder.kind.writes else model.forward
    )

    def run(number: int) -> None:
        answer(batches[_place(number, len(batches))].inputs)

    return run


def _row(
    name: str,
    model: Predictor,
    size: int,
    length: Lengths,
    times: Times,
    batches: Sequence[_Batch],
    load: tuple[float | None, float | None],
) -> LatencyRow:
    total, queries = float(times.sum()), times.size
    done = [batches[_place(number, len(batches))] for number in range(queries)]
    rounds = 1000 * np.median(times, axis=1)
    varied, (before, after) = spread(rounds), load
    round_ms = tuple(float(f"{value:.6g}") for value in rounds)
    return LatencyRow(
        name=name,
        batch=size,
        lengths=length,
        rounds=len(times),
        p50_ms=float(np.median(round_ms)),
        p95_ms=percentile_ms(times, 0.95),
        p99_ms=percentile_ms(times, 0.99),
        examples_per_second=sum(part.examples for part in done) / total,
        tokens_per_second=sum(part.tokens for part in done) / total,
        machine=device_name(model),
        queries=queries,
        round_ms=round_ms,
        iqr=varied,
        settled=varied < STEADY,
        threads=threads_of(model),
        engine=engine_name(model),
        cpus=usable_cores(),
        load=None if before is None or after is None else (before, after),
    )


def percentile_ms(times: Times, share: float) -> float | None:
    """Return a percentile in milliseconds, or None unless about ``TAIL`` queries lie above it.

    Args:
        times: Seconds of queries.
        share: Such as 0.95.
    """
    enough = round(times.size * (1 - share), 9) >= TAIL
    return 1000 * float(np.percentile(times, 100 * share)) if enough else None


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
            predict_in_place(model, chosen, batch)

        return run

    runs = {name: passing(model) for name, model in predictors.items()}
    times = interleave(runs, seconds, a_round=1, name="timing a stream of texts")
    rows = []
    for name, taken in times.items():
        middle, model = float(np.median(taken)), predictors[name]
        what = (device_name(model), tuple(taken[:, 0].tolist()), threads_of(model), engine_name(model))
        rows.append(StreamRow(name, batch, len(chosen), len(taken), middle, len(chosen) / middle, *what))
    return rows


def speedup(
    rows: Sequence[LatencyRow], name: str, against: str, batch: int = 1, lengths: Lengths | None = None
) -> Median | None:
    """Return the speedup of ``name`` over ``against``: the median of the ratios of the same rounds, with its interval.

    None without both rows, and where they ran with different numbers of threads. Rows of an earlier version have no
    rounds; of these it is the ratio of medians, whose coverage is 0.

    Args:
        rows: What ``latency`` returned.
        name: The model.
        against: The model it is held against.
        batch: Batch size.
        lengths: ``data`` or a number of tokens; None takes the first there is.
    """
    found: dict[tuple[str, Lengths], LatencyRow] = {}
    for row in rows:
        if row.batch == batch and lengths in (None, row.lengths):
            found.setdefault((row.name, row.lengths), row)
    for (model, length), row in found.items():
        reference = found.get((against, length))
        if model != name or reference is None or row.p50_ms <= 0:
            continue
        if row.threads != reference.threads and None not in (row.threads, reference.threads):
            continue
        if row.round_ms and len(row.round_ms) == len(reference.round_ms):
            return paired_ratio(reference.round_ms, row.round_ms)
        ratio = reference.p50_ms / row.p50_ms
        return Median(ratio, ratio, ratio, 0.0, row.rounds)
    return None
