"""A finished model made as fast as this machine allows, without training: from a model and a table to a checked export.

It is a recipe without steps, written beside its results, so whatever it does can be read, changed and run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from compress.artifact.artifact import Artifact
from compress.export.check.gate import SYNTHETIC
from compress.export.check.probes import synthetic_examples
from compress.export.targets.target_registry import FASTEST
from compress.recipe.from_yaml import recipe_from_plain
from compress.recipe.schema import fitting_name
from compress.shortcuts.labelled_data import given_data
from compress.shortcuts.own_folder import OwnFolder
from compress.terminal.output import duration
from eval.data.arguments import unusual
from eval.data.judging import RANGES, with_test
from eval.data.loading import Task
from eval.errors import CompressError, UserError
from eval.files.paths import from_anywhere
from eval.kinds.kind_registry import kind_of
from eval.measurement import wrong_margin
from eval.task import Examples, TaskSpec

if TYPE_CHECKING:
    from compress.export.tune import Trial
    from eval.result import Result

SECONDS = 2.0
"""Time for each row of the report."""


@dataclass(frozen=True)
class Optimized:
    """What came of it.

    Attributes:
        export: Folder of the export, for ``compress predict``, ``compress.export.Runtime`` or its own library.
        chosen: The variant that was kept, with its times and its agreement.
        results: Measurements on the examples that report; none without data.
        page: The report, likewise.
        certificate: What it shows, likewise.
        notes: What was found, assumed or divided, and what is recommended, a sentence each.
    """

    export: Path
    chosen: Trial
    results: tuple[Result, ...] = ()
    page: Path | None = None
    certificate: Path | None = None
    notes: tuple[str, ...] = ()


def optimize(
    model: str | Path,
    data: Any = None,
    *,
    text: str | Sequence[str] | None = None,
    label: str | None = None,
    out: str | Path | None = None,
    margin: float = 0.01,
    agreement: float | None = None,
    track: str | Sequence[str] = (),
) -> Optimized:
    """Export a model in the fastest way that answers as it does, and show what that costs.

    Float32, 8-bit and bfloat16 forms are written for every runtime that is installed; they are timed alternately on
    examples that choose, and the fastest that agrees is measured against the model on others.

    Args:
        model: A model folder that answers a task, or a hub name.
        data: Whatever ``eval.data.loading.load_task`` takes: a file, a folder, a DataFrame, ...; without any, variants
            are compared on synthetic texts, and nothing is certified.
        text: The column with the text; two for a pair. By default usual names are looked for.
        label: The column with the label, likewise.
        out: Folder to write; by default ``runs/NAME-optimized``. What an earlier call left there is gone on with.
        margin: Loss of the score that still counts as no worse.
        agreement: Least share of equal predictions; by default 0.98.
        track: Trackers that get what is measured on data, as a recipe's ``track``.

    Raises:
        UserError: If the model or the data cannot be used, with every reason.
        CompressError: If no variant answers as the model does, or the disk refuses.
    """
    artifact = Artifact.from_pretrained(str(model))
    name = Path(model).name or "model"
    called = fitting_name(name, "-optimized")  # never what results call another model, such as 'teacher'
    own = OwnFolder(Path(out) if out is not None else Path("runs") / f"{name}-optimized")
    if data is None:
        problems = ["text, label: name columns of data; give data, or leave them out"] * bool(text or label)
        problems += ["track: without data no score is measured; give data, or leave it out"] * bool(track)
        if problems:
            raise UserError(*problems)
        return _on_synthetic_texts(artifact, own.export, agreement)
    if problems := wrong_margin(artifact.task, margin):
        raise UserError(*problems)
    task, place, notes = given_data(artifact, data, text, label, with_test, own)
    plain = _recipe(from_anywhere(model), called, place, task.spec, margin, agreement)
    done, export, certified = own.finish(recipe_from_plain(plain | ({"track": track} if track else {}), called))
    found = next(result for result in done.results if result.name == FASTEST)
    chosen = _chosen(export)
    said = (
        *notes,
        *done.notes,
        f"{certified.sentence}.",
        *_recommended(found, chosen, export, _following(str(model), data, text, label, artifact, task)),
    )
    return Optimized(export, chosen, done.results, done.page, certified.file, said)


def _recipe(
    model: str, name: str, data: Path, spec: TaskSpec, margin: float, agreement: float | None
) -> dict[str, Any]:
    """Return the recipe, which has no steps: the model itself is exported."""
    task: dict[str, Any] = {"kind": spec.kind, "data": str(data.resolve()), "max_length": spec.max_length}
    task |= unusual(spec)
    if spec.labels:
        task["labels"] = list(spec.labels)
    settings = {} if agreement is None else {"agreement": agreement}
    return {
        "name": name,
        "task": task,
        "teacher": {"model": model},
        "student": {"from": "teacher"},
        "export": [{FASTEST: settings}],
        "evaluate": {"margin": margin, "memory": False, "latency": {"batch": [1], "seconds": SECONDS}},
    }


def _on_synthetic_texts(artifact: Artifact, export: Path, agreement: float | None) -> Optimized:
    from compress.export.tune import AGREEMENT, tune

    texts = Examples(synthetic_examples(artifact.encoder, SYNTHETIC), "validation")
    found = tune(
        artifact,
        export,
        Task(artifact.task, {"validation": texts}),
        agreement=AGREEMENT if agreement is None else agreement,
        synthetic=True,
    )
    notes = (
        f"Without data the variants were compared on {SYNTHETIC} synthetic texts, and no score was measured; give "
        "data to choose and to certify on real ones.",
        f"Use {found.report.folder}: {found.chosen.place}, {found.chosen.agreement:.1%} of the predictions there are "
        "the model's own, those left out between which it hardly chooses.",
    )
    return Optimized(found.report.folder, found.chosen, notes=notes)


def _chosen(export: Path) -> Trial:
    """Return the variant that an export was chosen as, with its figures."""
    from compress.export.runtime.manifest import read_manifest
    from compress.export.tune import Trial

    tuned = read_manifest(export).get("tuned") or {}
    if not tuned.get("trials"):
        raise CompressError(f"{export}: does not say what it was chosen from; remove it and run again")
    return Trial(**tuned["trials"][0])


def _recommended(found: Result, chosen: Trial, export: Path, following: str) -> list[str]:
    """Return which file to use and why, and what would come next."""
    ratios = [(found.speed_over(found.comparison.reference), "eager torch")] if found.comparison else []
    if found.same_engine and not chosen.variant.startswith("fp32"):
        ratios.append((found.speed_over(found.same_engine), "its own float32 export"))
    faster = " and ".join(f"{ratio.value:.1f} times as fast as {what}" for ratio, what in ratios if ratio is not None)
    smaller = found.shrinkage()
    size = "" if smaller is None or smaller < 1.05 else f", {smaller:.1f} times smaller"
    use = f"Use {export}: {chosen.place}, {faster or 'not timed'} at one text a time{size}."
    return [use, *([following] if following else [])]


def _following(
    model: str, data: Any, text: str | Sequence[str] | None, label: str | None, artifact: Artifact, task: Task
) -> str:
    """Return what makes the model itself smaller, and how long that would take.

    Nothing for a single layer, nor where a teacher would first have to write every training text.
    """
    from compress.engine.cost_plan import distilling_seconds
    from compress.shortcuts.recommendation import recommend
    from teachers.anatomy.encoder import layer_count
    from teachers.training.config import Training

    half = layer_count(artifact.model) // 2
    if not half or kind_of(task.spec.kind).truth is None or kind_of(task.spec.kind).writes:
        return ""
    learns = max(len(task.train), 6 * sum(map(len, task.splits.values())) // 10 if len(task.train) <= RANGES else 0)
    advice = recommend(task.spec.kind, half, 2 * half, learns, len(task.spec.labels) or None)
    training = Training(epochs=advice.epochs, batch_size=advice.batch_size)
    seconds = advice.trainings * distilling_seconds(artifact, half, task.select, learns, training)
    columns = {key: value for key, value in (("text", text), ("label", label)) if value is not None}
    if isinstance(data, str | Path):
        each = [(key, one) for key, value in columns.items() for one in ([value] if isinstance(value, str) else value)]
        flags = "".join(f"--{key} {quote(one)} " for key, one in each)
        call = f"compress distill {quote(model)} --data {quote(str(data))} {flags}--layers {half}"
    else:
        named = "".join(f"{key}={value!r}, " for key, value in columns.items())
        call = f"compress.shrink({model!r}, data, {named}layers={half})"
    return f"Next, for about twice the speed again: {call}, which needs about {duration(seconds)}."
