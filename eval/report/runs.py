"""Several runs held side by side: those that were asked the same and held against the same teacher are ranked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eval.examples import Example
from eval.files.typed_json import json_digest
from eval.kinds.kind_registry import kind_of
from eval.report.changed import Changed, changed
from eval.report.plots import frontier
from eval.report.speed import speed_interval
from eval.report.summary import count, difference, family, number, short
from eval.result_values import ResultValues

MILLISECONDS, BYTES = "milliseconds at batch size 1", "bytes"
"""What a group is ranked by, beside the score."""


@dataclass(frozen=True)
class RunFigures:
    """What a run shipped.

    Attributes:
        name: Of the run.
        result: Of the model that it ships (``eval.report.summary.shipped``).
        baselines: What it is held against, and the own exports of that.
    """

    name: str
    result: ResultValues
    baselines: tuple[ResultValues, ...] = ()

    @property
    def milliseconds(self) -> float | None:
        """Median time of one example."""
        row = self.result.row()
        return None if row is None else row.p50_ms


@dataclass(frozen=True)
class Group:
    """Runs that were measured on the same examples, by the same metric, against the same teacher.

    Attributes:
        runs: The runs, the best score first.
        ranked_by: The cost of the frontier.
        best: Names of the runs that no other beats in both score and cost.
        changed: Where the runs answer differently; None for one run, or without predictions.
        notes: What was not compared, and what holds of all runs at once, a sentence each.
    """

    runs: tuple[RunFigures, ...]
    ranked_by: str
    best: tuple[str, ...]
    changed: Changed | None
    notes: tuple[str, ...] = ()

    @property
    def first(self) -> ResultValues:
        """The result of the first run, which says what all of them were asked."""
        return self.runs[0].result

    @property
    def title(self) -> str:
        """The examples and the teacher in words."""
        asked, compared = self.first, self.first.comparison
        against = f", against {compared.reference}" if compared else ""
        source = f" of {asked.source}" if asked.source else ""
        return f"{asked.metric} on {count(asked.examples)} examples of {asked.split}{source}{against}"


def grouped(runs: Sequence[RunFigures], examples: Mapping[str, Sequence[Example]]) -> list[Group]:
    """Return the runs in groups that can be ranked, in the order in which they were given.

    Args:
        runs: The runs.
        examples: What was measured on, by digest, where it is known.
    """
    groups: dict[str, list[RunFigures]] = {}
    for run in runs:
        groups.setdefault(_asked(run), []).append(run)
    return [_ranked(group, examples.get(group[0].result.digest)) for group in groups.values()]


def told_apart(groups: Sequence[Group]) -> list[str]:
    """Return why runs are not ranked together; nothing for one group."""
    if len(groups) < 2:
        return []
    digests, said = {group.first.digest for group in groups}, []
    if len(digests) > 1:
        said.append("different examples")
    if len(digests) < len(groups):
        said.append("different teachers or metrics")
    parts = "; ".join(", ".join(run.name for run in group.runs) for group in groups)
    return [f"The runs were measured on {' and '.join(said)}, so they are not ranked together: {parts}."]


def headings(groups: Sequence[Group]) -> list[str]:
    """Return the headings of ``cells``."""
    metrics = dict.fromkeys(group.first.metric for group in groups)
    return ["run", "ships", " or ".join(metrics), "difference, 95% interval", "verdict", "size", "p50 ms", "speedup"]


def cells(run: RunFigures) -> list[str]:
    """Return the figures of a run in words; the speedup is that over its teacher in the same engine."""
    result, compared = run.result, run.result.comparison
    speed = result.speed_over(result.same_engine) if result.same_engine else None
    return [
        run.name,
        result.name,
        number(result.score),
        difference(result) or "-",
        compared.verdict if compared else "-",
        short(result.bytes, "B"),
        number(run.milliseconds, 2),
        f"{speed.value:.1f}" if speed else "-",
    ]


def eager_speed(run: RunFigures) -> tuple[str, str]:
    """Return the speedup over the teacher as it was measured, with its interval."""
    compared = run.result.comparison
    found = run.result.speed_over(compared.reference) if compared else None
    return ("-", "") if found is None else (f"{found.value:.1f}", speed_interval(found))


def plain(group: Group) -> dict[str, Any]:
    """Return a group as plain JSON values."""
    asked = group.first
    return {
        "examples": {"split": asked.split, "source": asked.source, "count": asked.examples, "digest": asked.digest},
        "metric": asked.metric,
        "teacher": asked.comparison.reference if asked.comparison else None,
        "ranked_by": group.ranked_by,
        "runs": [dict(_plain(run)) | {"best": run.name in group.best} for run in group.runs],
        "answers_differ": None if group.changed is None else list(group.changed.places),
        "notes": list(group.notes),
    }


def _plain(run: RunFigures) -> Iterator[tuple[str, Any]]:
    result, compared = run.result, run.result.comparison
    yield from {"name": run.name, "ships": result.name, "score": result.score, "bytes": result.bytes}.items()
    yield "milliseconds", run.milliseconds
    if compared is not None:
        found = compared.difference
        yield "difference", {"value": found.value, "low": found.low, "high": found.high}
        yield "verdict", compared.verdict
        ratios = {name: result.speed_over(name) for name in (result.same_engine, compared.reference) if name}
        yield "speedup", {name: ratio.value for name, ratio in ratios.items() if ratio is not None}


def _asked(run: RunFigures) -> str:
    """Return what decides whether two runs can be ranked; a teacher is known by its predictions."""
    result, kept = run.result, None
    if result.comparison is not None:
        names = {one.name: one for one in run.baselines}
        kept = names[result.comparison.reference].kept if result.comparison.reference in names else None
    answers = [] if kept is None else kind_of(result.task.kind).condensed(result.task, kept.answers, kept.gold)
    return json_digest([result.task.kind, result.metric, result.digest, answers])


def _ranked(runs: Sequence[RunFigures], examples: Sequence[Example] | None) -> Group:
    ordered = tuple(sorted(runs, key=lambda run: -run.result.score))
    notes = []
    places = {(run.result.machine.get("cpu"), row.threads) for run in runs if (row := run.result.row())}
    timed = len(places) == 1 and all(run.milliseconds is not None for run in runs)
    if len(places) > 1:
        notes.append("The runs were timed on different processors or threads: their milliseconds are not compared.")
    costs = [float((run.milliseconds if timed else run.result.bytes) or 0) for run in ordered]
    best = frontier(costs, [run.result.score for run in ordered])
    kept = {run.name: run.result.kept for run in ordered if run.result.kept is not None}
    found = changed(ordered[0].result.task, kept, examples) if len(kept) > 1 else None
    if found is not None and examples is None:
        notes.append("The data is not where the recipes say, or was changed, so examples are shown by number.")
    if said := family([run.result.model_copy(update={"name": run.name}) for run in ordered]):
        notes.append(f"{said}.")
    names = tuple(ordered[place].name for place in best)
    return Group(ordered, MILLISECONDS if timed else BYTES, names, found, tuple(notes))
