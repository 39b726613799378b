"""The sensible variants of an export, measured on this machine with the task's own texts, and the fastest kept."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from compress.export.default_int8 import calibrating, default_forms
from compress.export.folder import ExportReport, export, occupied, write_manifest
from compress.export.runtime.answering import Runtime, default_threads
from compress.export.runtime.manifest import MANIFEST
from compress.export.targets.target import Target
from compress.export.targets.target_registry import get_target, tuned_targets
from compress.modules.fake_quant import rounds
from compress.modules.int8_scheme import Int8, scheme_of
from compress.onnx_graph.float_graph import traced_once
from compress.quantize.dynamic import mixed
from eval.cost.latency import latency, stream
from eval.data.loading import Task
from eval.errors import CompressError, UserError, did_you_mean
from eval.files.json_text import read_json
from eval.files.writing import atomic_folder
from eval.kinds.kind_registry import kind_of
from eval.measurement import measure
from eval.progress.stages import stage, whole
from eval.task import SELECT, Examples
from teachers.taskmodel import TaskModel

logger = logging.getLogger("compress.export")
TIMED = 256
"""Examples that are timed."""
Variant = tuple[str, str, Int8 | Literal[False], dict[str, Any]]
"""Target, name, scheme and options of what is tried."""


@dataclass(frozen=True)
class Trial:
    """One variant with one number of threads.

    Attributes:
        target: What it was exported to.
        variant: Its name.
        threads: Threads of one product; 0 if it was not timed.
        bytes: Size of the model's file.
        agreement: Share of predictions that it has in common with the torch model.
        score: Its score on the examples; None where they have no labels.
        milliseconds: Median time of one example, from token ids to logits.
        per_second: Examples a second in a stream, tokenization included.
        dropped: Why it is out; empty if it is not.
    """

    target: str
    variant: str
    threads: int
    bytes: int = 0
    agreement: float = 0.0
    score: float | None = None
    milliseconds: float = 0.0
    per_second: float = 0.0
    dropped: str = ""

    @property
    def place(self) -> str:
        """What it is called, and the name of its folder."""
        return f"{self.target} {self.variant}"


ORDERS: Mapping[str, Callable[[Trial], float]] = {
    "latency": lambda trial: trial.milliseconds,
    "throughput": lambda trial: -trial.per_second,
}
"""What can be asked for: goal -> what the best has the least of."""
AGREEMENT = 0.98
"""Least share of predictions that are those of the torch model, if nothing else is asked for."""


@dataclass(frozen=True)
class Tuned:
    """What was tried and what was kept.

    Attributes:
        report: The export that was kept.
        chosen: How it did.
        trials: All of them, the fastest first, those that are out last.
    """

    report: ExportReport
    chosen: Trial
    trials: tuple[Trial, ...]


def tune(
    model: TaskModel,
    folder: str | Path,
    task: Task,
    *,
    goal: str = "latency",
    targets: Sequence[str] | None = None,
    agreement: float = AGREEMENT,
    least_score: float | None = None,
    seconds: float = 2.0,
    synthetic: bool = False,
    name: str | None = None,
    made_from: str | None = None,
) -> Tuned:
    """Write the fastest of the sensible exports that agrees well enough; ``export.json`` keeps the table.

    Args:
        model: What is exported.
        folder: As for ``export_onnx``.
        task: Examples to compare, score and time with (``task.select``), and to take ranges from (training).
        goal: ``latency``: the time of one text; ``throughput``: texts a second in a stream.
        targets: What may be exported to; by default every target that is measured. Those whose library is not installed
            are left out.
        agreement: Least share of predictions that are those of the torch model.
        least_score: Least score, in units of the task's metric; None asks for none.
        seconds: How long each variant is timed.
        synthetic: Whether the examples are synthetic. Then predictions between which the model hardly chooses do not
            count, and per-tensor dynamic quantization, whose error depends on the texts most, is not tried.
        name: What reports call the export.
        made_from: Digest of all that decides the export, which its manifest keeps.

    Raises:
        UserError: If the folder holds something else, the goal is not known, there are no examples, or no labels for a
            score.
        CompressError: If no variant agrees well enough.
    """
    examples = task.select
    if problems := occupied(Path(folder)):
        raise UserError(*problems)
    if goal not in ORDERS:
        raise UserError(f"tune: got {goal!r}{did_you_mean(goal, ORDERS)}")
    measured = tuned_targets(kind_of(model.task.kind).writes)
    if unknown := [target for target in targets or () if target not in measured]:
        raise UserError(
            f"tune: variants for {', '.join(unknown)} are not measured, those for {' and '.join(measured)} are"
        )
    if not len(examples):
        raise UserError(
            "tune: there are no examples to choose on; add a validation split, or training examples to carve some from"
        )
    with tempfile.TemporaryDirectory() as temporary, whole("variants"), traced_once():
        how: dict[str, Any] = {"agreement": agreement, "name": name, "made_from": made_from}
        variants = _candidates(model, task, [get_target(name) for name in targets or measured])
        reports, trials = _exported(model, Path(temporary), task, variants, least_score, synthetic, **how)
        with stage("timing"):
            left = [trial for trial in trials if not trial.dropped]
            timed = _timed(left, Path(temporary), examples[:TIMED], seconds)
        order = [*sorted(timed, key=ORDERS[goal]), *(trial for trial in trials if trial.dropped)]
        if not timed:
            reasons = "; ".join(f"{trial.place}: {trial.dropped}" for trial in order)
            raise CompressError(f"{folder}: no variant agrees well enough ({reasons}); ask for less agreement or score")
        chosen = order[0]
        _keep(Path(temporary) / chosen.place, Path(folder), goal, chosen, order, examples)
    return Tuned(replace(reports[chosen.place], folder=Path(folder)), chosen, tuple(order))


def _exported(
    model: TaskModel,
    temporary: Path,
    task: Task,
    variants: Iterable[Variant],
    least_score: float | None,
    synthetic: bool,
    **how: Any,
) -> tuple[dict[str, ExportReport], list[Trial]]:
    """Export every variant; return the reports of those that agree, by place, and a trial for each count of threads."""
    reports: dict[str, ExportReport] = {}
    trials: list[Trial] = []
    examples = () if synthetic else task.select
    for target, variant, scheme, options in variants:
        if synthetic and scheme and scheme.activations == "tensor" and not scheme.by_token:
            trials.append(Trial(target, variant, 0, dropped="it needs real texts to be judged on"))
            continue
        place = temporary / Trial(target, variant, 0).place
        try:
            with stage(place.name):
                report = export(model, place, target, int8=scheme, examples=examples, options=options, **how)
        except CompressError as error:
            reason = (str(error).partition("model does: ")[2] or str(error)).partition(";")[0]
            trials.append(Trial(target, variant, 0, dropped=reason))
            continue
        reports[place.name] = report
        score = _score(place, task, least_score)
        dropped = "" if least_score is None or (score or 0.0) >= least_score else f"scores {score:.4f}"
        known = Trial(target, variant, 0, report.bytes, report.gate.agreement, score, dropped=dropped)
        trials += [replace(known, threads=threads) for threads in ([0] if dropped else _threads())]
    return reports, trials


def _candidates(model: TaskModel, task: Task, targets: Sequence[Target]) -> Iterator[Variant]:
    """Yield target, name, scheme and options of what is tried; say why the rest is not."""
    schemes = {}
    for variant, make in VARIANTS.items():
        scheme = make(model, task)
        if isinstance(scheme, str):
            logger.info("%s: not tried, %s", variant, scheme)
        else:
            schemes[variant] = scheme
    for target in targets:
        if target.library is None or find_spec(target.library.package) is None:
            logger.info("%s: not tried, it is not installed", target.name)
            continue
        for variant, scheme in schemes.items():
            if not scheme or scheme.activations in target.activations:
                for precision, options in target.precisions(target.read_options({})).items():
                    yield target.name, f"{variant}{precision}", scheme, options.own()


def _threads() -> list[int]:
    """Return the numbers of threads to try: one, and as many as there are cores for this process."""
    return sorted({1, default_threads() or os.cpu_count() or 1})


def _score(folder: Path, task: Task, least: float | None) -> float | None:
    try:
        return measure(Runtime(folder, spinning=False), replace(task, splits={SELECT: task.select}), split=SELECT).score
    except UserError:
        if least is not None:
            raise
        return None  # examples without labels


def _timed(trials: Sequence[Trial], temporary: Path, examples: Any, seconds: float) -> list[Trial]:
    """Return the trials with their times, all taken alternately."""
    if not trials:
        return []
    models = {
        f"{trial.place}, {trial.threads}": Runtime(temporary / trial.place, trial.threads, spinning=False)
        for trial in trials
    }
    alone = {row.name: row.p50_ms for row in latency(models, examples, batch=(1,), seconds=seconds)}
    streams = {row.name: row.examples_per_second for row in stream(models, examples, seconds=seconds)}
    return [
        replace(trial, milliseconds=alone[known], per_second=streams[known])
        for trial, known in zip(trials, models, strict=True)
    ]


def _keep(source: Path, folder: Path, goal: str, chosen: Trial, trials: Sequence[Trial], examples: Examples) -> None:
    """Put the chosen export in place, with the table and its number of threads in the manifest."""
    with atomic_folder(folder, "the export") as beside:
        shutil.copytree(source, beside, dirs_exist_ok=True)
        manifest = read_json(beside / MANIFEST)
        manifest["tuned"] = {"goal": goal, "threads": chosen.threads, "trials": [asdict(trial) for trial in trials]}
        manifest["chosen_on"] |= {"export variant": examples.digest}
        write_manifest(beside, manifest)


Choice = Int8 | Literal[False] | str
"""A scheme, float32, or why a variant is not tried."""


def _float(model: TaskModel, task: Task) -> Choice:
    del task
    return "the model is made of integers" if rounds(model.model) else False


def _recorded(model: TaskModel, task: Task) -> Choice:
    del task
    return scheme_of(getattr(model, "lineage", ())) or "no step of the recipe asks for it"


def _by_token(model: TaskModel, task: Task) -> Choice:
    del task
    return "the model has ranges of its own" if _is_bound(model) else Int8()


def _by_tensor(model: TaskModel, task: Task) -> Choice:
    del task
    return "the model has ranges of its own" if _is_bound(model) else Int8(activations="tensor")


def _mixed(model: TaskModel, task: Task) -> Choice:
    del task
    if _is_bound(model):
        return "the model has ranges of its own"
    scheme = mixed(model)
    return scheme if scheme.by_token else "it has no feed-forward networks"


def _fixed(model: TaskModel, task: Task) -> Choice:
    if _is_bound(model):
        return "the model has ranges of its own"
    if not len(task.train):
        return "there are no training examples to take ranges from"
    form = next(default_forms(model, ("static",), calibrating(task)), None)
    return "it has no layers for them" if form is None or form.scheme is None else form.scheme


def _is_bound(model: TaskModel) -> bool:
    """Whether ranges belong to this very network, or its weights have no float ones to round."""
    recorded = scheme_of(getattr(model, "lineage", ()))
    return rounds(model.model) or (recorded is not None and recorded.activations == "static")


VARIANTS: Mapping[str, Callable[[TaskModel, Task], Choice]] = {
    "fp32": _float,
    "int8, as recorded": _recorded,
    "int8, per-token dynamic": _by_token,
    "int8, mixed dynamic": _mixed,
    "int8, per-tensor dynamic": _by_tensor,
    "int8, static": _fixed,
}
"""What is tried: name -> the scheme, False for float32, or a sentence why not."""
