"""Runs the steps of a recipe on a model: check, dry run, run, verify, record, resume."""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from compress.artifact.artifact import Artifact, load
from compress.artifact.record import Record, outcome_of
from compress.artifact.store import is_artifact
from compress.export.runtime.manifest import sha256
from compress.modules.masked import masked_parts
from compress.recipe.step_order import step_problems
from compress.registry import get, names, package_of
from compress.technique import Inputs, Outcome, Technique
from compress.traits import UNPRUNED, Handover, Trait
from eval.errors import CompressError, UserError
from eval.files.writing import atomic_folder
from eval.inference import predict
from eval.kinds.kind_registry import kind_of
from eval.naming import without_paths
from eval.progress.stages import passed, stage
from teachers.anatomy.encoder import has_decoder, layer_count
from teachers.renamed import recorded
from teachers.seeding import seeded
from teachers.taskmodel import TaskModel
from teachers.training.threshold_choice import with_thresholds
from teachers.training.tracking import tracked_as, untracked

if TYPE_CHECKING:
    from compress.recipe import Recipe

logger = logging.getLogger("compress.engine.steps")

DRY_RUN_EXAMPLES = 4
"""Examples that the dry run sees."""


def run(
    recipe: Recipe,
    student: TaskModel,
    inputs: Inputs | None = None,
    *,
    folder: str | Path | None = None,
    dry_run_first: bool = True,
    anew: bool = False,
    reuse: Path | None = None,
) -> Artifact:
    """Apply the steps of a recipe to ``student``, which stays as it is.

    Args:
        recipe: Its ``steps`` and ``seed`` are used; ``compress.engine.pipeline`` handles the other blocks.
        student: The model to start from.
        inputs: Data and teacher for the steps.
        folder: Where every step is kept, and where an interrupted training goes on; None keeps nothing.
        dry_run_first: Whether the whole recipe first runs with one optimizer step per step, to fail early.
        anew: Whether a step that ``folder`` keeps, but that was made from something else, is made anew; else it is
            refused, for what was trained is not thrown away unasked.
        reuse: Where another run kept its steps; up to the first that differs they are taken over into ``folder``.

    Returns:
        The result with its lineage.

    Raises:
        UserError: With every reason why the recipe cannot run, before any compute.
        CompressError: If a step fails or gives a model that is not sound.
    """
    inputs = inputs or Inputs()
    artifact = Artifact.from_model(student)
    found = problems(recipe.steps, artifact, inputs)
    if found:
        raise UserError(*found)
    places = None if folder is None else step_folders(recipe, folder)
    if dry_run_first and recipe.steps and not (places and all(is_artifact(place) for place in places)):
        _, found_late = dry_run(recipe, artifact, inputs)
        if found_late:
            raise UserError(*(sentence for _, sentence in found_late))
    for index, step in enumerate(recipe.steps):
        place = None if places is None else places[index]
        if place is not None and reuse is not None and not is_artifact(place):
            reuse = (
                reuse if _taken_over(reuse / place.name, place, step, artifact, inputs, recipe.seed + index) else None
            )
        artifact = run_step(step, artifact, inputs, recipe.seed + index, place, anew)
    return artifact


def step_folders(recipe: Recipe, folder: str | Path) -> list[Path]:
    """Return where ``run`` keeps the result of each step."""
    return [Path(folder) / f"{index + 1}-{step.name}" for index, step in enumerate(recipe.steps)]


def problems(steps: Sequence[Technique], student: TaskModel, inputs: Inputs) -> list[str]:
    """Return every reason why these steps cannot run on this model; nothing is computed."""
    return [sentence for _, sentence in placed_problems(steps, student, inputs)]


def placed_problems(steps: Sequence[Technique], student: TaskModel, inputs: Inputs) -> list[tuple[int, str]]:
    """Return what ``problems`` does, each with the number of its step, counted from 0."""
    have = {name for name in ("train", "calibration", "teacher") if getattr(inputs, name) is not None}
    lacking, placed = lacking_of(student), list(enumerate(steps))
    found = [(int(place[-1]), sentence) for place, sentence in step_problems(placed, have, lacking)]
    for index, step in placed:
        unfit = {"transformer_layers": not step.takes_any, "one_stack": not step.both_stacks}
        if any(wanted and trait in lacking.takes for trait, wanted in unfit.items()):
            continue
        try:
            found += [(index, f"step {index + 1}, {sentence}") for sentence in step.check(student, inputs)]
        except UserError as error:  # the teacher has not what the step asks it for
            found += [(index, f"step {index + 1}, {step.name}: {sentence}") for sentence in error.problems]
    return found


def lacking_of(model: TaskModel) -> Handover:
    """Return which traits a model lacks before the first step, such as transformer layers, or layers not pruned."""
    if not layer_count(model.model):
        return Handover(model.name, takes=frozenset({"transformer_layers"}))
    pruned = frozenset[Trait](UNPRUNED[part] for part in masked_parts(model.model))
    return Handover(model.name, takes=pruned | ({"one_stack"} if has_decoder(model.model) else set()))


def dry_run(
    recipe: Recipe, artifact: Artifact, inputs: Inputs, left_out: Collection[int] = ()
) -> tuple[Artifact, list[tuple[int, str]]]:
    """Run the steps on a few examples with one optimizer step each, as a dry run; nothing of it stays on disk.

    Args:
        recipe: Its steps and seed.
        artifact: The model to start from, which stays as it is.
        inputs: Data and teacher.
        left_out: Steps, counted from 0, that are known to be impossible; the others run without them.

    Returns:
        A model of the shape that the result will have, with records of config and scheme of exports alone; and what is
        impossible, each with the number of its step, counted from 0.

    Raises:
        CompressError: If a step gives a model that is not sound.
    """
    logger.info("dry run of %d steps", len(recipe.steps))
    found: list[tuple[int, str]] = []
    with untracked(), _few_examples(inputs) as few:
        for index, step in enumerate(recipe.steps):
            if index in left_out:
                continue
            where = f"step {index + 1}, {step.name} (in the dry run)"
            try:
                with unsaid(step):
                    outcome = apply_step(step.for_dry_run(), artifact, few, recipe.seed + index)
                _verify(step, outcome.model, inputs)
            except UserError as error:
                found += [(index, f"{where}: {sentence}") for sentence in error.problems]
                continue
            except CompressError as error:
                raise type(error)(f"{where}: {error}") from error
            config = recorded(step)
            record = Record(technique=step.name, config=config, export_scheme=outcome.export_scheme, weights_after="")
            artifact = with_record(artifact, outcome.model, record)
    return artifact, found


@contextlib.contextmanager
def unsaid(step: Technique) -> Iterator[None]:
    """Keep a step from telling what came of it in a dry run: what it chose there is not what it will choose.

    Warnings are told.
    """
    own = logging.getLogger(type(step).__module__)
    level = own.level
    own.setLevel(logging.WARNING)
    try:
        yield
    finally:
        own.setLevel(level)


@contextlib.contextmanager
def _few_examples(inputs: Inputs) -> Iterator[Inputs]:
    """Give what a dry run sees: a few examples, and the teacher with its signals in a folder of their own."""
    with tempfile.TemporaryDirectory() as signals:
        yield Inputs(
            train=None if inputs.train is None else inputs.train[:DRY_RUN_EXAMPLES],
            calibration=None if inputs.calibration is None else inputs.calibration[:DRY_RUN_EXAMPLES],
            teacher=None if inputs.teacher is None else inputs.teacher.kept_in(Path(signals)),
        )


def with_record(artifact: Artifact, made: TaskModel, record: Record) -> Artifact:
    """Return what a step made of an artifact, with its record."""
    return Artifact(made.model, made.tokenizer, made.task, name=artifact.name, lineage=(*artifact.lineage, record))


def run_step(
    step: Technique, artifact: Artifact, inputs: Inputs, seed: int, place: Path | None, anew: bool = False
) -> Artifact:
    """Apply one step, or find its result at ``place``; arguments as for ``run``."""
    working = None if place is None else place.with_name(place.name + ".working")
    found = None if place is None else _kept(place, step, artifact, inputs, seed, anew)
    if found is not None:
        passed(step.name, "already there")
        if working is not None:  # a kill may have come before it was removed
            shutil.rmtree(working, ignore_errors=True)
        return found
    with tracked_as(step.name if place is None else place.name), stage(step.name) as work:
        outcome = apply_step(step, artifact, replace(inputs, folder=working), seed)
    _verify(step, outcome.model, inputs)
    made = with_thresholds(outcome.model, inputs.validation)
    facts = outcome.facts | ({} if made is outcome.model else {"thresholds": list(made.task.thresholds)})
    fresh = replace(made)  # digests are computed once an object, and the weights have changed
    known = identity(step, artifact, inputs, seed)
    record = Record(
        **known,
        chosen_on={} if known["teacher"] is None else _teacher_choices(inputs.teacher),
        package=package_of(step.name),
        facts=without_paths(facts),
        export_scheme=outcome.export_scheme,
        size_before=artifact.lineage[-1].size_after,
        **outcome_of(fresh),
        seconds=round(work.seconds, 3),
    )
    result = with_record(artifact, fresh, record)
    if place is not None and working is not None:
        result.save(place)
        shutil.rmtree(working, ignore_errors=True)
    return result


def apply_step(step: Technique, model: TaskModel, inputs: Inputs, seed: int) -> Outcome:
    """Apply one step to a copy of the model, with all chance seeded; nothing is recorded or kept."""
    own = TaskModel(copy.deepcopy(model.model), model.tokenizer, model.task, name=model.name)
    generator = torch.Generator().manual_seed(seed)
    with seeded(seed):
        return step.apply(own, inputs, generator)


def identity(step: Technique, artifact: Artifact, inputs: Inputs, seed: int) -> dict[str, Any]:
    """Return what decides the outcome of a step: the part of its record that is known beforehand."""
    used: dict[str, str] = {
        name: getattr(inputs, name).digest
        for name in ("train", "validation", "calibration")
        if getattr(inputs, name) is not None and (name in step.needed() or (name == "validation" and step.trains))
    }
    if (step.chooses or artifact.task.choose_thresholds) and inputs.validation:
        used["selection"] = inputs.validation.digest
    used |= _files({path: sha256(path) for path in step.reads() if path.is_file()})
    return {
        "technique": step.name,
        "version": step.version,
        "config": without_paths(recorded(step)),
        "data": used,
        "teacher": inputs.teacher.digest if inputs.teacher is not None and "teacher" in step.needed() else None,
        "seed": seed,
        "weights_before": artifact.lineage[-1].weights_after,
    }


def _teacher_choices(teacher: Any) -> dict[str, str]:
    """Return what of a teacher, or of the members of an ensemble, was chosen -> digest of what it was chosen on."""
    model = getattr(teacher, "model", None)
    if model is None:
        return dict(getattr(teacher, "chosen_on", {}))
    return {f"{what}, {model.name}": digest for what, digest in model.chosen_on.items()}


def _files(digests: Mapping[Path, str]) -> dict[str, str]:
    """Return digests by the names of their files, numbered where two have one name."""
    found: dict[str, str] = {}
    for path, digest in digests.items():
        name, number = path.name, 1
        while name in found:
            number += 1
            name = f"{path.name} ({number})"
        found[name] = digest
    return found


def _kept(place: Path, step: Technique, artifact: Artifact, inputs: Inputs, seed: int, anew: bool) -> Artifact | None:
    """Return the result of this very step from an earlier run, or None; another step's is refused or made anew."""
    if not is_artifact(place):
        return None
    found = load(place)
    differing = _differing(found, step, artifact, inputs, seed)
    if differing and anew:
        logger.info("%s: was made from something else (%s differ)", place, ", ".join(differing))
        return None
    if differing:
        raise UserError(
            f"{place}: holds the result of another run ({', '.join(differing)} differ); choose another --out, "
            "or remove this folder and those of the steps after it to run them anew; whatever was made from them "
            "(exports, baseline, results) is then made anew as well"
        )
    return replace(found, name=artifact.name)


def _differing(found: Artifact, step: Technique, artifact: Artifact, inputs: Inputs, seed: int) -> list[str]:
    """Return in what a kept result was made from something else than this step would make it from."""
    wanted = identity(step, artifact, inputs, seed)
    last = found.lineage[-1].model_dump(mode="json")
    differing = sorted(key for key in wanted if json.dumps(last[key]) != json.dumps(wanted[key]))
    given, before = artifact.lineage[-1].files, found.lineage[-2].files
    changed = sorted(name for name in given.keys() | before.keys() if given.get(name) != before.get(name))
    return differing + [f"{name} of the model before" for name in changed if before]  # earlier versions recorded none


def _taken_over(kept: Path, place: Path, step: Technique, artifact: Artifact, inputs: Inputs, seed: int) -> bool:
    """Take over what another run kept of this very step, if it did."""
    if not is_artifact(kept):
        return False
    if differing := _differing(load(kept), step, artifact, inputs, seed):
        logger.info("%s: is not taken over (%s differ)", kept, ", ".join(differing))
        return False
    logger.info("%s: is taken over", kept)
    copy_step(kept, place)
    return True


def copy_step(kept: Path, place: Path) -> None:
    """Put what is kept of a step where another run looks for it; no bytes are copied where the disk allows it."""
    with atomic_folder(place, "the step") as beside:
        shutil.copytree(kept, beside, copy_function=_link, dirs_exist_ok=True)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _verify(step: Technique, model: TaskModel, inputs: Inputs) -> None:
    """Refuse weights and outputs that are not finite."""
    bad = [name for name, tensor in model.model.state_dict().items() if not bool(torch.isfinite(tensor).all())]
    if bad:
        raise CompressError(f"{step.name}: weights are no longer finite in {', '.join(bad[:3])}")
    examples = next((split for split in (inputs.validation, inputs.train, inputs.calibration) if split), None)
    if examples is None or kind_of(model.task.kind).masks:
        return
    outputs = predict(replace(model), examples[:DRY_RUN_EXAMPLES]).logits
    if not all(np.isfinite(output).all() for output in outputs):
        raise CompressError(f"{step.name}: the model gives outputs that are not finite")


def step_notes(lineage: Iterable[Record]) -> list[str]:
    """Return what steps say of what they found, a sentence each; those of techniques that are not here say nothing."""
    known = set(names())
    said = [(one.technique, get(one.technique).note(one.facts)) for one in lineage if one.technique in known]
    return [f"{name} {sentence}." for name, sentence in said if sentence]
