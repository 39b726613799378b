"""A whole recipe, from data and teacher to exports and report; every stage is kept, so that a stopped run goes on."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compress.artifact.artifact import Artifact
from compress.artifact.store import write_card
from compress.engine.ablation import ablations
from compress.engine.baseline import baseline_notes, constant_notes, first_stage_notes, weak_teacher_notes
from compress.engine.claim_file import carry_claims
from compress.engine.evaluation import evaluate
from compress.engine.looks import carry_looks, read_looks, told
from compress.engine.preflight import foresee
from compress.engine.preparation import Prepared, prepare, refuse_several
from compress.engine.run_exports import loaded_exports, write_exports
from compress.engine.run_folder import (
    MODEL,
    PAGE,
    RESULTS_FILE,
    STEPS,
    place_of_run,
    provisional,
    refuse_other_run,
    run_in,
    save_result,
    steps_to_reuse,
    take,
)
from compress.engine.steps import run, step_notes
from compress.engine.tracked_run import track_results, tracked
from compress.recipe import Recipe, read_recipe
from eval.errors import UserError
from eval.files.writing import atomic_write
from eval.naming import public_name
from eval.progress.stages import stage, whole
from eval.proof.known_examples import remember
from eval.result import Result
from teachers.training.processes import how_many

if TYPE_CHECKING:
    from compress.engine.preview import Preview
    from eval.inference import Predictor
    from eval.task import Examples


logger = logging.getLogger("compress.engine.pipeline")

CHECK, EXPORT, MEASURE = "check and prepare", "export", "measure"
"""What progress calls the stages before and after the steps."""


@dataclass(frozen=True)
class Run:
    """What a recipe made.

    Attributes:
        artifact: The compressed model, saved in ``folder / "model"``.
        folder: Where everything lies.
        exports: Export folders by name.
        results: One for each model that was measured: teacher, student, baseline, exports.
        page: The report as one HTML page, if the recipe evaluates.
        notes: What the report says beside its tables: the roles of the examples, how often the split that reports was
            opened, and in what the baseline differs.
    """

    artifact: Artifact
    folder: Path
    exports: dict[str, Path]
    results: tuple[Result, ...]
    page: Path | None
    notes: tuple[str, ...] = ()


def run_recipe(
    recipe: Recipe | str | Path, out: str | Path, *, resume: bool = False, reuse: str | Path | None = None
) -> Run:
    """Run a recipe from beginning to end.

    Args:
        recipe: What to do, or the file that says it.
        out: Folder for results; it must be new, empty, or hold an interrupted run of the same recipe.
        resume: Go on with what ``out`` holds.
        reuse: Folder of another run: its steps, up to the first that differs, are taken over, and its looks at the
            split that reports count as this one's.

    Raises:
        UserError: If recipe, data, teacher or folder are unusable.
        CompressError: If training, export or the disk fails.
    """
    recipe = read_recipe(recipe) if isinstance(recipe, str | Path) else recipe
    out = place_of_run(Path(out)) if resume else Path(out)
    if how_many() > 1:
        raise UserError(
            "a recipe is run by one process; start it without torchrun. What several processes can do is train its "
            "teacher, which the run then finds: torchrun … -m compress teach --recipe …"
        )
    refuse_several(recipe)
    refuse_other_run(recipe, out, resume)
    reuse = None if reuse is None else run_in(Path(reuse))
    earlier = None if reuse is None else steps_to_reuse(reuse, out)
    plan = [CHECK, *(step.name for step in recipe.steps)]
    plan += [EXPORT] if recipe.export else []
    plan += [MEASURE] if recipe.evaluate is not None else []
    with whole(recipe.name, plan, kept_in=out), ExitStack() as trackers:
        with stage(CHECK):
            with provisional(out):
                seen = foresee(recipe, out / STEPS)
            trackers.enter_context(tracked(recipe, out))
            prepared = _prepared(recipe, seen, out)
            if reuse is not None:
                carry_claims(reuse, out)
                carry_looks(reuse, out)
        return _carried_out(recipe, prepared, out, earlier)


def _carried_out(recipe: Recipe, prepared: Prepared, out: Path, earlier: Path | None) -> Run:
    for note in prepared.roles.notes if prepared.roles is not None else ():
        logger.info("data: %s", note)
    if prepared.task is not None:
        used = prepared.inputs
        remember(prepared.task.spec.kind, used.train, used.validation, used.calibration, prepared.task.select)
    artifact = run(recipe, prepared.student, prepared.inputs, folder=out / STEPS, dry_run_first=False, reuse=earlier)
    artifact = replace(artifact, name=recipe.name, folder=out / MODEL)
    save_result(artifact, out)
    exports: dict[str, Path] = {}
    if recipe.export:
        with stage(EXPORT):
            exports = write_exports(recipe, artifact, prepared, out)
    results: tuple[Result, ...] = ()
    page = None
    notes: list[str] = []
    if recipe.evaluate is not None and prepared.task is not None:
        with stage(MEASURE):
            others, unrun = _ablated(recipe, prepared, out)
            results, more = evaluate(recipe, prepared, artifact, exports, out, others)
        own = next((result for result in results if result.name == artifact.name), None)
        examples = prepared.task.splits[prepared.roles.report] if prepared.roles is not None else None
        write_card(artifact, artifact.lineage, out / MODEL, own)
        notes = [
            *_notes(recipe, prepared),
            *step_notes(artifact.lineage),
            *unrun,
            *more,
            *(_baseline_notes(artifact, out) if recipe.evaluate.baseline else ()),
            *weak_teacher_notes(recipe, own),
            *constant_notes(results),
            *first_stage_notes(prepared.task.spec, examples or (), own),
            told(read_looks(out)),
        ]
        page = _report(recipe, artifact, results, out, notes, exports, examples)
        track_results(results)
    return Run(artifact, out, exports, results, page, tuple(notes))


def _prepared(recipe: Recipe, seen: Preview, out: Path) -> Prepared:
    """Take ``out`` for this recipe, and make what its steps need: a trained teacher, further examples."""
    take(out, recipe)
    teacher = recipe.teacher
    trains = teacher is not None and (
        teacher.finetune is not None or teacher.pretrain is not None or teacher.new is not None
    )
    if seen.prepared is not None and not trains and recipe.augment is None:
        return seen.prepared
    return prepare(recipe, roles=seen.roles)


def _ablated(recipe: Recipe, prepared: Prepared, out: Path) -> tuple[list[Predictor], list[str]]:
    """Return the models that the recipe gives without each of its steps, their exports, and what could not be run."""
    models: list[Predictor] = []
    notes: list[str] = []
    if not recipe.ablate:
        return models, notes
    for ablation in ablations(recipe, prepared.student, prepared.inputs, out):
        if ablation.artifact is None:
            notes.append(f"The recipe {ablation.name} cannot run: {ablation.reason}.")
            continue
        models.append(ablation.artifact)
        exports = write_exports(recipe, ablation.artifact, prepared, ablation.folder)
        models += loaded_exports(exports, prefix=f"{ablation.name}, ").values()
    return models, notes


def _baseline_notes(artifact: Artifact, out: Path) -> list[str]:
    """Return what is said of the baseline: its optimizer steps, and in what it differs beside the teacher."""
    from compress.artifact.lineage import FILE, read_lineage

    if not (out / "baseline" / FILE).is_file():
        return []
    return baseline_notes(artifact.lineage, read_lineage(out / "baseline" / FILE))


def _notes(recipe: Recipe, prepared: Prepared) -> list[str]:
    task, train = prepared.task, prepared.inputs.train
    said = [] if prepared.roles is None else list(prepared.roles.notes)
    if recipe.augment is None or task is None or train is None:
        return said
    rule = f"copies of them by the rule {recipe.augment.rule}, " if recipe.augment.rule else ""
    text = f"unlabelled texts of {public_name(recipe.augment.unlabelled)}, " if recipe.augment.unlabelled else ""
    note = f"The steps learned from {len(train):,} examples: the {len(task.train):,} of the task, {rule}{text}"
    note = f"{note.removesuffix(', ')}."
    if recipe.evaluate is not None and recipe.evaluate.baseline:
        note += f" The model without teacher learned from the {len(task.train):,} labelled examples of the task alone."
    return [*said, note]


def _report(
    recipe: Recipe,
    artifact: Artifact,
    results: Sequence[Result],
    out: Path,
    notes: Sequence[str],
    exports: Collection[str],
    examples: Examples | None,
) -> Path:
    from eval.report.page import write_page

    records: list[dict[str, Any]] = [record.model_dump(mode="json") for record in artifact.lineage]
    curves = {
        f"{number}. {record.technique}": record.facts["history"]
        for number, record in enumerate(artifact.lineage)
        if record.facts.get("history")
    }
    page = out / PAGE
    shown: dict[str, Any] = {"curves": curves, "lineage": records, "notes": notes}
    write_page(page, recipe.name, results, exports=exports, examples=examples, **shown)
    figures = [result.model_dump(mode="json", exclude={"kept"}) for result in results]
    atomic_write(out / RESULTS_FILE, (json.dumps(figures, indent=1) + "\n").encode())
    return page
