"""Several models on the same examples: each measured against one reference, all of them timed alternately."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from eval.cost.latency import LatencyPlan
from eval.cost.latency import latency as time_models
from eval.data.loading import Task
from eval.errors import UserError
from eval.inference import Predictor
from eval.measurement import Once, kept_of, measure
from eval.progress.stages import one_by_one
from eval.report.summary import shipped
from eval.result import Result
from eval.stress.robustness import stressed


def measure_together(
    models: Sequence[Predictor],
    task: Task,
    against: Predictor | None = None,
    split: str = "validation",
    margin: float = 0.01,
    latency: LatencyPlan | None = None,
    seed: int = 13,
    same_engine: Mapping[str, str] | None = None,
    once: Once = lambda _, asked: asked(),
) -> list[Result]:
    """Measure models on one split; the reference answers once, and timings are of one run, so that ratios hold.

    Args:
        models: What is measured; their names must differ.
        task: The task with its examples.
        against: The reference; its own result comes first.
        split: Which examples.
        margin: Loss against the reference that is allowed, in units of the metric.
        latency: What to time; None times nothing, and what has ``timed`` False is not timed.
        seed: Which examples are put together where there are too many to leave out each.
        same_engine: Names of models -> that of the reference's own export for the same engine, which is measured too.
        once: Finds the answers of a model that an interrupted measurement had, or asks it.

    Raises:
        UserError: As ``measure`` does.
    """
    everything = ([] if against is None else [against]) + list(models)
    results: list[Result] = []
    for model in one_by_one(everything, "measuring"):
        reference = results[0] if against is not None and results else None
        behind = None if reference is None else against
        results.append(measure(model, task, reference, split, margin, seed=seed, once=once, behind=behind))
    if latency is None:
        return results
    timed = {model.name: model for model in everything if getattr(model, "timed", True)}
    rows = time_models(timed, task.splits[split], latency.batch, latency.lengths, latency.seconds)
    found = []
    for result in results:
        own = (same_engine or {}).get(result.name)
        names = {result.name, result.comparison.reference if result.comparison else "", own}
        timings = tuple(row for row in rows if row.name in names)
        found.append(result.model_copy(update={"latency": timings, "same_engine": own}))
    return found


def reference_and_compared(
    results: Sequence[Result], models: Mapping[str, Predictor], what: str
) -> tuple[Result, list[Result]]:
    """Return the result of the reference and those of all that were compared with it, in order.

    Args:
        results: What ``measure_together`` returned, the reference first.
        models: All that were measured, by name.
        what: Names in the message what asks for a reference, such as ``stress``.

    Raises:
        UserError: There is no reference, or nothing was compared with it.
    """
    compared = [result for result in results if result.comparison is not None]
    if not compared or results[0].name not in models:
        raise UserError(f"{what}: compares a model with its teacher; give a reference")
    return results[0], compared


def with_stress(
    results: Sequence[Result],
    models: Mapping[str, Predictor],
    task: Task,
    split: str,
    seed: int = 13,
    exports: Collection[str] = (),
) -> list[Result]:
    """Return the results, with what came of perturbed texts in that of the model and that of its shipped export.

    Args:
        results: What ``measure_together`` returned, the reference first, with their answers.
        models: All that were measured, by name.
        task: The task with its examples.
        split: Which examples.
        seed: Of the rules.
        exports: Names of the exports (see ``eval.report.summary.shipped``).

    Raises:
        UserError: There is no reference, or nothing to compare (see ``eval.stress.robustness.stressed``).
    """
    reference, compared = reference_and_compared(results, models, "stress")
    leading = shipped(results, exports)
    chosen = [one for one in compared if one is compared[0] or one is leading]
    lacking = [one.name for one in (reference, *chosen) if one.kept is None]
    if lacking:
        raise UserError(f"stress: the answers of {' and '.join(lacking)} were not kept; measure again")
    asked, first = [(models[one.name], kept_of(one)) for one in chosen], (models[reference.name], kept_of(reference))
    found = stressed(task.spec, task.splits[split], asked, first, seed)
    under = {
        one.name: {"stress": rows, "stress_seed": seed, "perturbed": answers}
        for one, (rows, answers) in zip(chosen, found, strict=True)
    }
    return [one.model_copy(update=under.get(one.name, {})) for one in results]
