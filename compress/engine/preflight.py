"""What would end a run after hours: found before anything is trained, all at once, with the lines of the recipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from compress.artifact.artifact import load, load_model, made_without_head
from compress.artifact.store import is_artifact
from compress.engine.baseline import BASELINE, without_teacher
from compress.engine.beside_scores import unattributed
from compress.engine.preview import Preview, look
from compress.engine.reference_exports import always_for, names_in_results
from compress.engine.steps import dry_run, problems, step_folders
from compress.export.folder import export_problems
from compress.export.targets.target_registry import FASTEST, get_target
from compress.modules.int8_scheme import Int8, scheme_of
from compress.reading.yaml_places import Location
from eval.cost.latency import length_problems
from eval.data.roles import AUTO, uncarved
from eval.errors import UserError
from eval.inference import predict
from eval.kinds.kind_registry import kind_of
from eval.measurement import scored_examples, wrong_margin
from eval.naming import public_name
from teachers.signals.predictions_teacher import PredictionsTeacher
from teachers.training.tracking import tracker_problems

if TYPE_CHECKING:
    from compress.artifact.artifact import Artifact
    from compress.engine.preparation import Prepared
    from compress.recipe import Recipe
    from compress.recipe.blocks import EvaluateBlock
    from eval.data.loading import Task
    from eval.data.roles import Roles
    from eval.inference import Predictor

Found = tuple[Location, str]
"""A place in the recipe, and what is wrong there."""


def foresee(recipe: Recipe, steps: Path | None = None) -> Preview:
    """Load what a recipe starts from and find everything that would end its run later; nothing is trained to the end.

    The steps run on a few examples, with one optimizer step each, unless ``steps`` holds the results of all of them.

    Args:
        recipe: What to do.
        steps: Where an earlier run kept its steps.

    Raises:
        UserError: With every reason why the recipe cannot run, each with its line if it came from a file.
        CompressError: If a step gives a model that is not sound.
    """
    seen = look(recipe)
    found: list[Found] = []
    made: Artifact | None = None
    if seen.prepared is not None:
        made = _result(recipe, seen.prepared, seen.impossible, steps, found)
    found += _export_problems(recipe, seen.roles, made)
    found += _evaluate_problems(recipe, seen.roles, seen.prepared, made)
    found += [(("track",), sentence) for sentence in tracker_problems(recipe.trackers)]
    everything = [*seen.problems, *(f"{recipe.where(place)}{sentence}" for place, sentence in found)]
    if everything or seen.prepared is None:
        raise UserError(*everything)
    return seen


def result_name(name: str) -> str:
    """Return the folder in ``results`` of a model by this name."""
    return name.replace(", ", "-").replace(" ", "-")


def _result(
    recipe: Recipe, prepared: Prepared, impossible: frozenset[int], steps: Path | None, found: list[Found]
) -> Artifact | None:
    """Return a model of the result's shape; what its steps cannot do is added to ``found``."""
    places = [] if steps is None else step_folders(recipe, steps)
    if places and all(is_artifact(place) for place in places):
        try:
            return load(places[-1])
        except UserError as error:  # the run would find it damaged when all else is done
            found += [(("steps", len(places) - 1), sentence) for sentence in error.problems]
            return None
    made, late = dry_run(recipe, prepared.student, prepared.inputs, impossible)
    found += [(("steps", index), sentence) for index, sentence in late]
    return None if late or impossible else replace(made, name=recipe.name)


def _export_problems(recipe: Recipe, roles: Roles | None, made: Artifact | None) -> Iterator[Found]:
    for index, block in enumerate(recipe.export):
        where = f"export {index + 1}, {block.target}"
        target = get_target(block.target)
        for sentence in target.missing():
            yield ("export", index), f"{where}: {sentence}"
        if block.target == FASTEST and (roles is None or not len(roles.task.select)):
            why = ""
            if recipe.evaluate is not None and roles is not None and len(roles.task.train):
                why = f": {uncarved(roles.task)}"
            yield (
                ("export", index),
                f"{where}: there are no examples to choose on{why}; add a validation split beside a test split, or "
                "export to a target by its name",
            )
        if made is None:
            continue
        asked = scheme_of(made.lineage)
        scheme = asked or (Int8() if block.settings.int8 else None)
        for sentence in export_problems(target, made, scheme, block.settings):
            yield ("export", index), f"{where}: {sentence}"


def _evaluate_problems(
    recipe: Recipe, roles: Roles | None, prepared: Prepared | None, made: Artifact | None
) -> Iterator[Found]:
    block = recipe.evaluate
    if block is None:
        return
    yield from _name_problems(recipe, block)
    if roles is None:
        return
    task = roles.task
    yield from ((("evaluate", "margin"), f"evaluate.{wrong}") for wrong in wrong_margin(task.spec, block.margin))
    try:
        silent = block.split == AUTO and roles.report not in task.splits
        if silent and roles.notes and kind_of(task.spec.kind).scored:
            raise UserError(f"{roles.notes[-1]} Add such a split, or leave evaluate out.")
        scored_examples(task, roles.report)
    except UserError as error:
        yield from ((("evaluate", "split"), f"evaluate.split: {_bare(one)}") for one in error.problems)
    reference: Predictor | None = None
    if block.against == "teacher":
        reference = None if prepared is None else prepared.reference
        yield from _headless(recipe, prepared)
        yield from _uncovered(task, roles.report, prepared)
    elif block.against != "none":
        try:
            reference = load_model(block.against, task.spec, new_head=False)
        except UserError as error:
            yield from ((("evaluate", "against"), f"evaluate.against: {one}") for one in error.problems)
    yield from _model_problems(block, task, [model for model in (reference, made) if model is not None])
    yield from _index_problems(block, made)
    if block.baseline and prepared is not None and made is not None:  # else the steps' own problems say it
        yield from ((("evaluate", "baseline"), f"evaluate.baseline: {one}") for one in _baseline(recipe, prepared))


def _headless(recipe: Recipe, prepared: Prepared | None) -> Iterator[Found]:
    """Find teachers that are to be compared with, and whose head nobody trains."""
    block = recipe.teacher
    if block is None or prepared is None or any((block.finetune, block.pretrain, block.new, block.shape)):
        return
    for source, model in zip(block.models, prepared.teachers, strict=False):
        if made_for := made_without_head(model):
            yield (
                ("teacher", "model"),
                f"teacher.model: {public_name(source)} is {made_for}, without a trained head for {model.task.kind}, so "
                "its answers are random; add finetune: {epochs: 3}, or evaluate: {against: none} if it gives layers",
            )


def _model_problems(block: EvaluateBlock, task: Task, models: Sequence[Predictor]) -> Iterator[Found]:
    """Find what cannot be measured of the reference and of the result."""
    if block.latency is not None:
        for name, model in {model.name: model for model in models}.items():
            for sentence in length_problems(name, model, (block.latency.lengths,)):
                yield ("evaluate", "latency", "lengths"), f"evaluate.latency.lengths: {sentence}"
    kind = kind_of(task.spec.kind)
    if block.stress and (kind.masks or kind.causal):
        yield ("evaluate", "stress"), f"evaluate.stress: {kind.named} model gives no answers to compare; leave it out"
    if block.stress and any(isinstance(model, PredictionsTeacher) for model in models):
        yield ("evaluate", "stress"), "evaluate.stress: a file of predictions answers no perturbed texts; leave it out"
    if block.attributions:
        for sentence in unattributed(task.spec, models, "evaluate.attributions"):
            yield ("evaluate", "attributions"), sentence


def _index_problems(block: EvaluateBlock, made: Artifact | None) -> Iterator[Found]:
    """Find forms of an index that hold more dimensions than vectors have."""
    if made is None or not any(form.dimensions for form in block.index):
        return
    width = predict(made, [{"text": ""}]).logits[0].shape[-1]
    for place, form in enumerate(block.index):
        if (form.dimensions or 0) > width:
            sentence = f"evaluate.index: dimensions: {form.dimensions} is more than vectors have here, {width}"
            yield ("evaluate", "index", place, "dimensions"), sentence


def _uncovered(task: Task, split: str, prepared: Prepared | None) -> Iterator[Found]:
    """Say which examples that report have no prediction, where a file of them is what is compared with."""
    predictions = None if prepared is None else prepared.predictions
    examples = task.splits.get(split)
    if predictions is None or not examples:
        return
    if lacking := predictions.lacking(examples):
        sentence = predictions.uncovered(examples, lacking).partition(", or leave them out")[0]
        yield ("evaluate", "against"), f"evaluate.against: {sentence}, or write against: none, or a model folder"


def _baseline(recipe: Recipe, prepared: Prepared) -> list[str]:
    """Return why the recipe cannot run on labels only."""
    return problems(without_teacher(recipe).steps, prepared.student, replace(prepared.inputs, teacher=None))


def _name_problems(recipe: Recipe, block: EvaluateBlock) -> Iterator[Found]:
    """Find results that would be written over each other."""
    taken = {"teacher"} if block.against == "teacher" else set()
    taken |= {BASELINE} if block.baseline else set()
    for export in recipe.export:
        taken |= {export.target, f"{export.target}-int8"}
    if block.against == "teacher" and block.latency is not None and block.reference_exports:
        always = always_for(recipe.task.kind) if recipe.task is not None else ()
        taken |= set(names_in_results("teacher", taken - {"teacher", BASELINE}, always))
    if result_name(recipe.name).lower() in {result_name(name).lower() for name in taken}:
        sentence = (
            f"name: {recipe.name!r} is what results call another model ({', '.join(sorted(taken))}); choose another"
        )
        yield ("name",), sentence


def _bare(sentence: str) -> str:
    return sentence.removeprefix("measure: ")
