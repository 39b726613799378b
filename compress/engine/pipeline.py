"""A whole recipe, from data and teacher to exports and report; every stage is kept, so that a stopped run goes on."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from compress.artifact.artifact import Artifact, load_model
from compress.artifact.record import library_versions
from compress.artifact.store import write_card
from compress.engine.ablation import ablations
from compress.engine.baseline import BASELINE, baseline_notes, first_stage_notes, weak_teacher_notes, without_teacher
from compress.engine.beside_scores import with_more
from compress.engine.claim_file import carry_claims, claim_of, fix_claim
from compress.engine.kept_results import answered_once, keep_results, kept_results, measured_from
from compress.engine.looks import carry_looks, look, read_looks, told
from compress.engine.preflight import foresee, result_name
from compress.engine.preparation import Prepared, prepare, refuse_several
from compress.engine.reference_exports import ReferenceExports, always_for, reference_exports
from compress.engine.run_exports import form_in, runs_here, target_in, write_exports
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
from compress.recipe import Recipe
from eval.comparison import measure_together
from eval.cost.latency import LatencyPlan
from eval.errors import UserError
from eval.files.writing import atomic_write
from eval.measurement import scored_examples
from eval.metrics.own_metric import OwnMetric
from eval.naming import public_name
from eval.progress.stages import stage, whole
from eval.proof.known_examples import remember
from eval.ranking.indexed import indexed
from eval.result import Result
from teachers.taskmodel import TaskModel
from teachers.training.processes import how_many
from teachers.training.tracking import tracked_as

if TYPE_CHECKING:
    from compress.engine.preview import Preview
    from eval.inference import Predictor
    from eval.task import Examples, TaskSpec


logger = logging.getLogger("compress.engine.pipeline")

CHECK, EXPORT, MEASURE = "check and prepare", "export", "measure"
"""What progress calls the stages before and after the steps."""
OWN_REASONS = "Attributions are not compared: no step changed a weight, so they are those of the reference."
OWN_ANSWERS = "Perturbed texts are not answered: no step changed a weight and nothing is exported, so nothing differs."


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


def run_recipe(recipe: Recipe, out: str | Path, *, resume: bool = False, reuse: str | Path | None = None) -> Run:
    """Run a recipe from beginning to end.

    Args:
        recipe: What to do.
        out: Folder for results; it must be new, empty, or hold an interrupted run of the same recipe.
        resume: Go on with what ``out`` holds.
        reuse: Folder of another run: its steps, up to the first that differs, are taken over, and its looks at the
            split that reports count as this one's.

    Raises:
        UserError: If recipe, data, teacher or folder are unusable.
        CompressError: If training, export or the disk fails.
    """
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
    from compress.export.runtime.answering import Runtime

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
        runnable = {name: at for name, at in exports.items() if runs_here(at)}
        threads = torch.get_num_threads()
        models += [
            Runtime(at, threads, name=f"{ablation.name}, {name}", spinning=False) for name, at in runnable.items()
        ]
    return models, notes


def evaluate(
    recipe: Recipe,
    prepared: Prepared,
    artifact: Artifact,
    exports: dict[str, Path],
    out: Path,
    others: Sequence[Predictor] = (),
) -> tuple[tuple[Result, ...], tuple[str, ...]]:
    """Measure everything on the same examples, alternately, unless ``out / "results"`` holds just this measurement.

    Every model runs with the threads of torch, so that no ratio mixes two numbers of them.

    Args:
        recipe: Its ``evaluate`` block says how.
        prepared: Data and teacher.
        artifact: The result.
        exports: Its exports by name.
        out: Folder of the run.
        others: Further models.

    Returns:
        The results, and notes for the report.
    """
    from compress.export.runtime.answering import Runtime

    block, roles = recipe.evaluate, prepared.roles
    if block is None or roles is None:
        return (), ()
    task = roles.task
    reference: Any = None
    if block.against == "teacher":
        reference = prepared.reference
    elif block.against != "none":
        reference = load_model(block.against, task.spec, new_head=False)
    unchanged = isinstance(reference, TaskModel) and reference.digest == artifact.digest
    attributed = block.attributions and not unchanged
    models: list[Predictor] = [] if unchanged else [artifact]  # of the same model one row is enough
    if block.baseline:
        models.append(replace(_baseline(recipe, prepared, out), name=BASELINE))
    threads, runnable = torch.get_num_threads(), {name: at for name, at in exports.items() if runs_here(at)}
    own_exports: list[Predictor] = [Runtime(at, threads, name=name, spinning=False) for name, at in runnable.items()]
    models += [*own_exports, *indexed(own_exports or [artifact], block.index), *others]
    if reference is not None and result_name(reference.name) in {result_name(model.name) for model in models}:
        reference = replace(reference, name=f"{reference.name} (reference)")
    plan, own = None, ReferenceExports()
    if block.latency is not None:
        plan = LatencyPlan(**block.latency.model_dump())
        # The unchanged model in the same form would be held against itself, so its float32 stands there.
        forms = {name: target_in(at) if unchanged else form_in(at) for name, at in runnable.items()}
        always = always_for(task.spec.kind, unchanged)
        if block.reference_exports:
            own = reference_exports(reference, forms, threads, prepared.inputs.calibration, always)
        models += dict.fromkeys(own.models.values())
    examples, claim = scored_examples(task, roles.report), ""
    everything = [*([] if reference is None else [reference]), *models]
    asked_for = _asked_for(task.spec, examples, roles.report, recipe.seed)
    made_from = measured_from(
        everything,
        **asked_for,
        margin=block.margin,
        latency=None if plan is None else plan.model_dump(mode="json"),
        memory=block.measures_memory,
        same_engine=own.same_engine,
        threads=threads,
        **({"stress": 2} if block.stress else {}),
        **({"attributions": 1} if attributed else {}),
    )
    stressed = block.stress and (not unchanged or bool(own_exports))
    said = {OWN_REASONS: block.attributions and unchanged, OWN_ANSWERS: block.stress and not stressed}
    notes = (*own.notes, *(sentence for sentence, needed in said.items() if needed))
    if kept := kept_results(out, [model.name for model in everything], made_from):
        return kept, notes
    if reference is not None:
        asked = claim_of(task.spec, examples, roles.report, block.margin, recipe.seed)
        claim = fix_claim(out, asked, reference, models).digest
    look(out, roles.report, examples, models, claim)
    how = (task, reference, roles.report, block.margin, plan, recipe.seed, own.same_engine)
    shared: dict[str, str | None] = {}
    if reference is not None and not isinstance(task.spec.metric, OwnMetric):  # whose code may change
        shared[reference.name] = measured_from([reference], **asked_for, versions=library_versions())
    once = answered_once(out, made_from, shared)
    results = measure_together(models, *how, once)
    known = {model.name: model for model in everything}
    wanted = {"stress": stressed, "attributions": attributed, "memory": block.measures_memory}
    results = with_more(results, known, task, roles.report, recipe.seed, runnable, **wanted)
    return keep_results(out, results, made_from), notes


def _asked_for(spec: TaskSpec, examples: Examples, split: str, seed: int) -> dict[str, Any]:
    """Return what a score and its interval depend on beside the models, as plain JSON values."""
    asked = {"task": spec.model_dump(mode="json"), "examples": examples.digest, "split": split, "seed": seed}
    if examples.groups is not None:
        asked["groups"] = examples.groups
    if isinstance(spec.metric, OwnMetric):
        asked["metric_code"] = spec.metric.code
    return asked


def _baseline(recipe: Recipe, prepared: Prepared, out: Path) -> Artifact:
    """Run the recipe with every teacher taken away: the same student, trained on labels only.

    Nothing of ``augment`` is there either: most of it needs a teacher that answers it. So the baseline says what
    teacher and augmentation brought together, at the same number of optimizer steps.
    """
    train = None if prepared.task is None else prepared.task.train
    inputs = replace(prepared.inputs, teacher=None, train=train)
    alone = without_teacher(recipe, len(train or ()), len(prepared.inputs.train or ()))
    with tracked_as("baseline"), stage(BASELINE):
        found = run(alone, prepared.student, inputs, folder=out / "baseline-steps", dry_run_first=False, anew=True)
    found.save(out / "baseline")
    return replace(found, folder=out / "baseline")


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
