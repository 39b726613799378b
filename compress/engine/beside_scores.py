"""What is measured beside scores and latency where it is asked for: perturbed texts, attributions, peak memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from compress.engine.model_memory import with_memory
from eval.comparison import with_stress

if TYPE_CHECKING:
    from eval.data.loading import Task
    from eval.inference import Predictor
    from eval.result import Result
    from eval.task import TaskSpec


def with_more(
    results: Sequence[Result],
    models: Mapping[str, Predictor],
    task: Task,
    split: str,
    seed: int,
    exports: Collection[str] = (),
    *,
    stress: bool = False,
    attributions: bool = False,
    memory: bool = False,
) -> list[Result]:
    """Return the results with all that is asked for; recipes and ``compress eval`` both go this way.

    Args:
        results: What ``measure_together`` returned, the reference first.
        models: All that were measured, by name.
        task: The task with its examples.
        split: Which examples.
        seed: Of rules, draws and intervals.
        exports: Names of the exports.
        stress: Answers to perturbed texts (``with_stress``).
        attributions: Agreement of attributions (``with_attributions``).
        memory: Peak memory (``with_memory``).

    Raises:
        UserError: As the three functions do.
    """
    found = list(results)
    if stress:
        found = with_stress(found, models, task, split, seed, exports)
    if attributions:
        from teachers.attribution.attribution_agreement import with_attributions

        found = with_attributions(found, models, task, split, seed)
    return with_memory(found, models, task.splits[split]) if memory else found


def unattributed(spec: TaskSpec, models: Sequence[Any], where: str = "attributions") -> Iterator[str]:
    """Yield, before anything is measured, why the attributions of models cannot be compared.

    Args:
        spec: What is asked.
        models: The model and its reference.
        where: How the user asked for it, such as ``evaluate.attributions``.
    """
    from teachers.attribution.text_attributions import unexplained

    yield from (sentence.replace("attributions", where, 1) for sentence in unexplained(spec, models))
