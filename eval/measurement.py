"""Measure a model on a task, alone or against a reference, and keep what is needed to compare it later."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from eval.cost.latency import LatencyPlan, LatencyRow
from eval.cost.latency import latency as time_models
from eval.cost.machine import machine
from eval.cost.size import MACS_LENGTH, MODEL_FILES, Size, file_bytes, folder_bytes, onnx_size
from eval.data.loading import Task
from eval.errors import UserError, quantity
from eval.inference import Predictor, answered, batches_by_length, completed, on_gpu
from eval.kinds.kind_registry import all_kinds, kind_of
from eval.kinds.other_form import other_form
from eval.metrics.own_metric import Function, OwnMetric
from eval.naming import public_name
from eval.predictions import Kept
from eval.progress.stages import counted
from eval.proof.contributions import units_of
from eval.proof.paired_predictions import method_for, paired_scores
from eval.proof.paired_statistics import (
    Interval,
    agreement,
    expected_calibration_error,
    is_binary,
    mcnemar,
    non_inferior,
)
from eval.proof.role import role_of
from eval.ranking.index_fields import Approximation
from eval.ranking.indexed import index_size
from eval.result import Result
from eval.result_values import Comparison
from eval.scores import per_example, score
from eval.seed_pairs import seed_pairs
from eval.slices import confusion, groups, slices
from eval.task import Examples, TaskSpec

MOST_LOGITS = 200_000
"""Numbers up to which raw outputs are kept with the answers."""
Once = Callable[[str, Callable[[], Result]], Result]
"""Takes the name of a model and what asks it, and returns what it answered: now, or in a measurement of before."""
MOST_MARGIN = 0.5
"""The largest loss that may be a margin, of metrics whose best value is 1."""
CONFIDENCE = 0.95
"""Coverage of the intervals."""
MOST_NAMED = 5
"""Offenders that a message names."""


def measure(
    model: Predictor,
    task: Task,
    against: Predictor | Result | None = None,
    split: str = "validation",
    margin: float = 0.01,
    latency: LatencyPlan | None = None,
    batch_size: int = 32,
    seed: int = 13,
    metric: str | Function | None = None,
    once: Once = lambda _, asked: asked(),
    behind: Predictor | None = None,
) -> Result:
    """Measure a model on one split of a task.

    Where something of the model, or of the reference, was chosen on these very examples, the result has the role
    ``selection`` and no verdict (see ``eval.proof.role``).

    Args:
        model: What is measured.
        task: The task with its examples.
        against: The reference: another model, or an earlier result on the same examples.
        split: Which examples.
        margin: Loss against the reference that is allowed, in units of the metric.
        latency: What to time; None times nothing. A reference that is a model is timed alternately with this one.
        batch_size: Rows of a batch when answering.
        seed: Which examples are put together where there are too many to leave out each.
        metric: The primary metric in the place of the task's own: a name, or a function ``(y_true, y_pred) -> float``
            (see ``eval.metrics.own_metric``).
        once: Finds the answers of a model that an interrupted measurement had, or asks it.
        behind: The model of ``against`` where that is a result, which says less of what it was chosen on.

    Raises:
        UserError: The split is missing, empty or without labels, the model was made for another task, or the
            reference was measured on other examples.

    Examples:
        Whatever has a name, an encoder and ``forward`` can be measured:

        >>> import numpy as np
        >>> from tokenizers import Tokenizer, models, pre_tokenizers
        >>> from eval import EncoderSettings, Examples, Task, TaskSpec, TextEncoder
        >>> words = Tokenizer(models.WordLevel({"[PAD]": 0, "?": 1, "good": 2, "bad": 3}, unk_token="?"))
        >>> words.pre_tokenizer = pre_tokenizers.Whitespace()
        >>> class CountsWords:
        ...     name = "counts words"
        ...     encoder = TextEncoder(words, EncoderSettings(kind="classification", labels=("bad", "good")))
        ...     def forward(self, inputs):
        ...         return np.stack([(inputs["input_ids"] == word).sum(axis=1) for word in (3, 2)], axis=1)
        >>> films = [{"text": "a good film", "label": "good"}, {"text": "not good", "label": "bad"}]
        >>> spec = TaskSpec(kind="classification", labels=("bad", "good"))
        >>> measure(CountsWords(), Task(spec, {"validation": Examples(films)})).scores["accuracy"]
        0.5
    """
    if metric is not None:
        named = OwnMetric(metric) if callable(metric) else metric
        task = replace(task, spec=task.spec.model_copy(update={"metric": named}))
    examples = scored_examples(task, split)
    models = [model] if against is None or isinstance(against, Result) else [model, against]
    problems = [problem for one in models for problem in _mismatches(one, task.spec)]
    problems += wrong_margin(task.spec, margin)
    if isinstance(against, Result):
        problems += _unpaired(against, task.spec, examples.digest)
    if problems:
        raise UserError(*problems)
    result = once(model.name, partial(_answered, model, model.name, task, examples, split, batch_size, seed))
    kept = kept_of(result)
    role, chosen_on = role_of(examples, model, against if behind is None else behind, split, task.spec.kind)
    result = result.model_copy(update={"role": role, "chosen_on": chosen_on})
    parts = groups(task.spec, model.encoder, examples)
    rows: list[LatencyRow] = []
    if against is None:
        comparison, found = None, slices(task.spec, parts, kept)
        timed = {model.name: model}
    else:
        name = against.name if against.name != model.name else f"{against.name} (reference)"
        if isinstance(against, Result):
            reference, timed = against.model_copy(update={"name": name}), {model.name: model}
        else:
            reference = _answered(against, name, task, examples, split, batch_size, seed)
            timed = {model.name: model, name: against}
        comparison, found = pair(result, reference, margin, seed), slices(task.spec, parts, kept, reference.kept)
    if latency is not None:
        rows = time_models(timed, examples, latency.batch, latency.lengths, latency.seconds)
    return result.model_copy(update={"comparison": comparison, "slices": found, "latency": tuple(rows)})


def wrong_margin(spec: TaskSpec, margin: float) -> list[str]:
    """Return why a loss cannot be a margin: it is none, or more than half of what a score can lose at all.

    Args:
        spec: What is asked; a metric of one's own, and the scores of words that are predicted, may have any unit.
        margin: The loss that is allowed.
    """
    if not 0 <= margin < np.inf:
        return [f"margin={margin} must be a number of 0 or more, in units of the metric, such as 0.01"]
    if margin <= MOST_MARGIN or isinstance(spec.metric, OwnMetric) or kind_of(spec.kind).truth is None:
        return []
    return [
        f"margin={margin:g} is {margin * 100:g} points of {spec.metric}, whose best value is 1; a point is 0.01, so "
        f"{margin:g} points are {margin / 100:g}"
    ]


def pair(
    candidate: Result | Sequence[Result],
    reference: Result | Sequence[Result],
    margin: float = 0.01,
    seed: int = 13,
) -> Comparison:
    """Compare results that were measured apart, from their kept answers.

    Where one of them has the role ``selection``, so has the verdict.

    Args:
        candidate: A result, or several of one way of training (one a seed) to be pooled.
        reference: A result for all candidates, or one for each, of the same training seed.
        margin: Loss against the reference that is allowed, in units of the metric.
        seed: Which examples are put together where there are too many to leave out each.

    Raises:
        UserError: The results are of other examples or another task, lack their answers, or cannot be paired off.
    """
    candidates = [candidate] if isinstance(candidate, Result) else list(candidate)
    references = [reference] if isinstance(reference, Result) else list(reference)
    pairs = seed_pairs(candidates, references)
    first, other = pairs[0]
    everyone = [*candidates, *references]
    problems = [problem for one in everyone for problem in _unpaired(one, first.task, first.digest)]
    if problems:
        raise UserError(*problems)
    spec, number = first.task, first.examples
    groups = _groups(everyone)
    kept = [(kept_of(one), kept_of(other)) for one, other in pairs]
    answers = [(one.answers, other.answers) for one, other in kept]
    scored = paired_scores(spec, answers, kept[0][0].gold, groups, seed)
    found = scored.difference
    interval, level = found.interval(CONFIDENCE), float(scored.scores[:, 1].mean())
    values = [np.array(side.values) for side in kept[0]]
    agreed = [agreement(spec.kind, one.answers, other.answers) for one, other in kept]
    several = len(pairs) > 1
    chosen = any(one.role == "selection" for one in everyone)
    return Comparison(
        reference=other.name,
        metric=first.metric,
        margin=margin,
        verdict="selection" if chosen else non_inferior(interval, margin),
        difference=interval,
        retention=Interval(
            *(1 + end / level if level > 0 else math.nan for end in (interval.value, interval.low, interval.high))
        ),
        p_value=found.p_value(),
        noninferiority_p=None if chosen else found.p_value(-margin),
        confidence=CONFIDENCE,
        seeds=len(pairs),
        covers="training anew" if several else "these models",
        these_models=found.of_these_models(CONFIDENCE) if several else None,
        method=method_for(groups is not None),
        groups=None if groups is None else len(units_of(number, groups, number)),
        examples_needed=scored.examples_needed(margin, number),
        smallest_margin=found.smallest_margin(),
        agreement={name: float(np.mean([one[name] for one in agreed])) for name in agreed[0]},
        mcnemar=mcnemar(*values) if not several and all(is_binary(side) for side in values) else None,
        reference_scores={
            name: float(np.mean([one.scores[name] for _, one in pairs if name in one.scores])) for name in other.scores
        },
        reference_size=other.size,
        reference_bytes=other.file_bytes,
    )


def _groups(results: Sequence[Result]) -> list[str | None] | None:
    """Return the groups of the examples; results of before, of the same examples, may not have kept them.

    Raises:
        UserError: Two results say other groups.
    """
    known = [(one.name, one.kept.groups) for one in results if one.kept is not None and one.kept.groups is not None]
    others = [name for name, groups in known if groups != known[0][1]]
    if others:
        raise UserError(
            f"{others[0]}: its examples are in other groups than those of {known[0][0]}; measure both again"
        )
    return known[0][1] if known else None


def kept_of(result: Result) -> Kept:
    """Return the answers that a result kept.

    Raises:
        UserError: There are none.
    """
    if result.kept is None:
        raise UserError(f"{result.name}: its answers were not kept; measure it again")
    return result.kept


def _unpaired(result: Result, spec: TaskSpec, digest: str) -> list[str]:
    problems = []
    if result.digest != digest:
        problems.append(
            f"{result.name}: was measured on other examples ({result.split} of {result.source or 'a task'})"
        )
    if (result.task.kind, result.task.metric) != (spec.kind, spec.metric):
        problems.append(f"{result.name}: has {result.task.kind} scores by {result.task.metric}, not {spec.metric}")
    if result.kept is None:
        problems.append(f"{result.name}: its answers were not kept; measure it again")
    return problems


def scored_examples(task: Task, split: str) -> Examples:
    """Return the examples of a split, all of which have what an answer is scored against.

    Raises:
        UserError: If the split is missing, empty or without labels, or the kind of task has no scores.
    """
    field = kind_of(task.spec.kind).truth
    if not kind_of(task.spec.kind).scored:
        allowed = ", ".join(kind.name for kind in all_kinds() if kind.scored)
        raise UserError(f"measure: a {task.spec.kind} task has no answers to score; allowed: {allowed}")
    examples = task.splits.get(split)
    if examples is None:
        raise UserError(f"measure: {task.lacks(split)}")
    if not len(examples):
        filled = [name for name, items in task.splits.items() if len(items)]
        raise UserError(f"measure: the split {split!r} is empty; splits with examples: {', '.join(filled) or 'none'}")
    missing = [place for place, example in enumerate(examples) if field is not None and example.get(field) is None]
    if missing:
        named = ", ".join(str(place) for place in missing[:MOST_NAMED])
        raise UserError(
            f"measure: {quantity(len(missing), 'example')} of {split!r} without {field!r}, such as number {named}"
        )
    return examples


def _mismatches(model: Predictor, spec: TaskSpec) -> list[str]:
    settings = model.encoder.settings
    if settings.kind != spec.kind:
        return [f"{model.name}: was made for {settings.kind}, the task is {spec.kind}"]
    unknown = [label for label in spec.labels if label not in settings.labels]
    kind = kind_of(spec.kind)
    if unknown and kind.labelled:
        few = ", ".join(map(repr, unknown[:MOST_NAMED]))
        own = ", ".join(map(repr, settings.labels[:MOST_NAMED]))
        return [
            f"{model.name}: cannot answer {few}; its labels are {own}; load the task with a label_map, or another model"
        ]
    return other_form(model.name, spec.kind, spec.pair, settings.pair)


def _answered(
    model: Predictor, name: str, task: Task, examples: Examples, split: str, batch_size: int, seed: int
) -> Result:
    spec, kind = task.spec, kind_of(task.spec.kind)
    start = time.perf_counter()
    features = model.encoder.encode(examples)
    batches = batches_by_length([len(feature.ids) for feature in features], batch_size)
    with on_gpu(model):
        found = answered(model, examples, features, counted(batches, name, len(features)))
        predictions = completed(model, examples, found)
    seconds = time.perf_counter() - start
    values = per_example(spec, predictions.answers, examples)
    few = sum(int(row.size) for row in predictions.logits) <= MOST_LOGITS
    kept = Kept(
        answers=[dict(answer) for answer in predictions.answers],
        gold=[{field: example[field] for field in kind.gold if field in example} for example in examples],
        values=[float(value) for value in values],
        logits=[_shortest(row) for row in predictions.logits] if few else None,
        groups=examples.groups,
    )
    calibration = None
    if kind.calibrated:
        calibration = expected_calibration_error(*kind.confidences(kept.answers, examples))
    folder, (size, weight_bytes) = getattr(model, "folder", None), size_of(model)
    return Result(
        name=name,
        task=spec,
        source=public_name(task.source),
        split=split,
        digest=examples.digest,
        examples=len(examples),
        scores=score(spec, predictions.answers, examples),
        calibration_error=calibration,
        confusion=confusion(spec, predictions.answers, examples),
        size=size,
        file_bytes=weight_bytes,
        folder_bytes=folder_bytes(folder) if folder is not None else None,
        index=index_size(model, examples, predictions.logits),
        approximation=_approximation(spec, predictions.answers, examples),
        layers=None if predictions.layers is None else float(np.mean(predictions.layers)),
        seconds=seconds,
        machine=machine(),
        seed=seed,
        training_seed=getattr(model, "training_seed", None),
        kept=kept,
    )


def _approximation(spec: TaskSpec, answers: Sequence[dict[str, Any]], examples: Examples) -> Approximation | None:
    """Return what approximate search finds of what exact search does, where answers hold both rankings."""
    kind = kind_of(spec.kind)
    if not (kind.searches and any("exact" in answer for answer in answers)):
        return None
    exact = [{"ranking": answer["exact"]} for answer in answers]
    found = kind.agreement(list(zip(answers, exact, strict=True)))
    return Approximation(found["top_10"], score(spec, exact, examples)[spec.metric])


def size_of(model: Predictor) -> tuple[Size | None, int | None]:
    """Return the size of a model, if it or the file in its folder tells it, and the bytes of its weight files."""
    folder, size = getattr(model, "folder", None), getattr(model, "size", None)
    weight_bytes = file_bytes(folder, getattr(model, "weight_files", MODEL_FILES)) if folder else 0
    return size() if callable(size) else _file_size(model, folder), weight_bytes or None


def _file_size(model: Predictor, folder: str | Path | None) -> Size | None:
    """Return the size of the ONNX file in a folder, if there is one; its input is no longer than the model takes.

    An encoder beside it (``encoder.onnx``) counts too.
    """
    file = None if folder is None else Path(folder) / "model.onnx"
    length = min(MACS_LENGTH, getattr(model, "max_tokens", None) or MACS_LENGTH)
    if file is None or not file.is_file():
        return None
    source = file.with_name("encoder.onnx")
    return onnx_size(file, length) + onnx_size(source, length) if source.is_file() else onnx_size(file, length)


def _shortest(row: Any) -> Any:
    """Return nested lists of floats that print no longer than float32 needs."""
    if row.ndim > 1:
        return [_shortest(part) for part in row]
    return [float(str(value)) for value in row.astype(np.float32)]
