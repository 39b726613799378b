"""The last stage of a recipe: every model that it made beside its reference, measured once on the same examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from compress.artifact.artifact import load_model
from compress.artifact.record import library_versions
from compress.engine.baseline import BASELINE, without_teacher
from compress.engine.beside_scores import with_more
from compress.engine.claim_file import claim_of, fix_claim
from compress.engine.kept_results import answered_once, keep_results, kept_results, measured_from
from compress.engine.looks import look
from compress.engine.preflight import result_name
from compress.engine.reference_exports import ReferenceExports, always_for, reference_exports
from compress.engine.run_exports import form_in, loaded_exports, target_in
from compress.engine.steps import run
from eval.comparison import measure_together
from eval.cost.latency import LatencyPlan
from eval.measurement import scored_examples
from eval.metrics.own_metric import OwnMetric
from eval.progress.stages import stage
from eval.ranking.indexed import indexed
from teachers.taskmodel import TaskModel
from teachers.training.scoring import rows_of
from teachers.training.tracking import tracked_as

if TYPE_CHECKING:
    from compress.artifact.artifact import Artifact
    from compress.engine.preparation import Prepared
    from compress.recipe import Recipe
    from compress.recipe.evaluate_block import EvaluateBlock
    from eval.inference import Predictor
    from eval.result import Result
    from eval.task import Examples, TaskSpec

OWN_REASONS = "Attributions are not compared: no step changed a weight, so they are those of the reference."
OWN_ANSWERS = "Perturbed texts are not answered: no step changed a weight and nothing is exported, so nothing differs."


@dataclass(frozen=True)
class Measured:
    """The models of a run, what they are compared with, and how.

    Attributes:
        block: How the recipe wants them measured.
        reference: What they are compared with, if anything.
        models: All others, in the order of the report.
        exports: Names of the recipe's exports that run on this machine.
        own: The reference's own exports, which are among the models.
        unchanged: Whether no step changed a weight, so that the reference stands for the compressed model.
        threads: Threads that each of them runs with.
    """

    block: EvaluateBlock
    reference: Predictor | None
    models: tuple[Predictor, ...]
    exports: tuple[str, ...]
    own: ReferenceExports
    unchanged: bool
    threads: int

    @property
    def by_name(self) -> Mapping[str, Predictor]:
        """All that are measured, the reference first."""
        return {model.name: model for model in (self.reference, *self.models) if model is not None}

    @cached_property
    def timing(self) -> LatencyPlan | None:
        """How latency is measured; None if it is not."""
        latency = self.block.latency
        return None if latency is None else LatencyPlan(**latency.model_dump())

    @property
    def more(self) -> dict[str, bool]:
        """What is measured beside scores and latency, as ``with_more`` takes it."""
        return {
            "stress": self.block.stress and (not self.unchanged or bool(self.exports)),
            "attributions": self.block.attributions and not self.unchanged,
            "memory": self.block.measures_memory,
        }

    @property
    def notes(self) -> Iterator[str]:
        """Yield what could not be measured, or needs not be."""
        yield from self.own.notes
        for name, sentence in (("attributions", OWN_REASONS), ("stress", OWN_ANSWERS)):
            if getattr(self.block, name) and not self.more[name]:
                yield sentence

    def made_from(self, asked: Mapping[str, Any]) -> str | None:
        """Return the digest of all that the results depend on.

        Args:
            asked: What scores depend on beside the models.
        """
        plan = self.timing
        return measured_from(
            list(self.by_name.values()),
            **asked,
            margin=self.block.margin,
            latency=None if plan is None else plan.model_dump(mode="json"),
            memory=self.block.measures_memory,
            same_engine=self.own.same_engine,
            threads=self.threads,
            **({"stress": 2} if self.block.stress else {}),
            **({"attributions": 1} if self.more["attributions"] else {}),
        )


def evaluate(
    recipe: Recipe,
    prepared: Prepared,
    artifact: Artifact,
    exports: Mapping[str, Path],
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
    block, roles = recipe.evaluate, prepared.roles
    if block is None or roles is None:
        return (), ()
    measured = _measured(recipe, block, prepared, roles.task.spec, artifact, exports, out, others)
    task, split, seed, notes = roles.task, roles.report, recipe.seed, tuple(measured.notes)
    examples = scored_examples(task, split)
    asked = _asked_for(task.spec, examples, split, seed)
    made_from = measured.made_from(asked)
    if kept := kept_results(out, list(measured.by_name), made_from):
        return kept, notes
    reference, claim = measured.reference, ""
    shared: dict[str, str | None] = {}
    if reference is not None:
        claimed = claim_of(task.spec, examples, split, block.margin, seed)
        claim = fix_claim(out, claimed, reference, measured.models).digest
        if not isinstance(task.spec.metric, OwnMetric):  # whose code may change
            shared[reference.name] = measured_from([reference], **asked, versions=library_versions())
    look(out, split, examples, measured.models, claim)
    how = (task, reference, split, block.margin, measured.timing, seed, measured.own.same_engine)
    results = measure_together(measured.models, *how, answered_once(out, made_from, shared))
    results = with_more(results, measured.by_name, task, split, seed, measured.exports, **measured.more)
    return keep_results(out, results, made_from), notes


def _measured(
    recipe: Recipe,
    block: EvaluateBlock,
    prepared: Prepared,
    spec: TaskSpec,
    artifact: Artifact,
    exports: Mapping[str, Path],
    out: Path,
    others: Sequence[Predictor],
) -> Measured:
    """Load or make all that is measured: the reference, the baseline, the exports of both sides."""
    reference: Any = prepared.reference if block.against == "teacher" else None
    if block.against not in ("teacher", "none"):
        reference = load_model(block.against, spec, new_head=False)
    unchanged = isinstance(reference, TaskModel) and reference.digest == artifact.digest
    models: list[Predictor] = [] if unchanged else [artifact]  # of the same model one row is enough
    if block.baseline:
        models.append(replace(_baseline(recipe, prepared, out), name=BASELINE))
    threads, loaded = torch.get_num_threads(), loaded_exports(exports)
    own_exports = list(loaded.values())
    models += [*own_exports, *indexed(own_exports or [artifact], block.index), *others]
    if reference is not None and result_name(reference.name) in {result_name(model.name) for model in models}:
        reference = replace(reference, name=f"{reference.name} (reference)")
    own = ReferenceExports()
    if block.latency is not None and block.reference_exports:
        # The unchanged model in the same form would be held against itself, so its float32 stands there.
        forms = {name: target_in(exports[name]) if unchanged else form_in(exports[name]) for name in loaded}
        always = always_for(spec.kind, unchanged)
        own = reference_exports(reference, forms, threads, prepared.inputs.calibration, always)
    models += dict.fromkeys(own.models.values())
    return Measured(block, reference, tuple(models), tuple(loaded), own, unchanged, threads)


def _baseline(recipe: Recipe, prepared: Prepared, out: Path) -> Artifact:
    """Run the recipe with every teacher taken away: the same student, trained on labels only.

    Nothing of ``augment`` is there either: most of it needs a teacher that answers it. So the baseline says what
    teacher and augmentation brought together, at the same number of optimizer steps.
    """
    train = None if prepared.task is None else prepared.task.train
    inputs = replace(prepared.inputs, teacher=None, train=train)
    learned = prepared.inputs.train
    parts = (train, learned) if train and learned and train != learned else ()
    alone = without_teacher(recipe, *(len(rows_of(prepared.student, part, recipe.seed)) for part in parts))
    with tracked_as("baseline"), stage(BASELINE):
        found = run(alone, prepared.student, inputs, folder=out / "baseline-steps", dry_run_first=False, anew=True)
    found.save(out / "baseline")
    return replace(found, folder=out / "baseline")


def _asked_for(spec: TaskSpec, examples: Examples, split: str, seed: int) -> dict[str, Any]:
    """Return what a score and its interval depend on beside the models, as plain JSON values."""
    asked = {"task": spec.model_dump(mode="json"), "examples": examples.digest, "split": split, "seed": seed}
    if examples.groups is not None:
        asked["groups"] = examples.groups
    if isinstance(spec.metric, OwnMetric):
        asked["metric_code"] = spec.metric.code
    return asked
