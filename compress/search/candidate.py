"""A candidate: the recipe at one point of the space, its training cut short, and what its shape costs untrained."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compress.artifact.artifact import Artifact
from compress.artifact.record import Record
from compress.engine.preparation import build_student
from compress.engine.steps import DRY_RUN_EXAMPLES, apply_step, problems, unsaid, with_record
from compress.export.folder import export, in_8_bits
from compress.export.runtime.answering import Runtime
from compress.export.runtime.manifest import read_manifest
from compress.export.targets.target_registry import FASTEST, FIRST_TARGET
from compress.recipe.from_yaml import recipe_from_plain
from compress.search.ranges import RANGE, is_range, resolve
from compress.surgery import Surgery
from compress.technique import Inputs, Technique, TrainedTechnique
from eval.cost.latency import latency
from eval.cost.size import file_bytes
from eval.errors import UserError
from eval.files.typed_json import json_digest
from teachers.renamed import recorded
from teachers.training.config import Training

if TYPE_CHECKING:
    from compress.engine.preparation import Prepared
    from compress.recipe import Recipe
    from compress.search.budget import Budget
    from eval.data.loading import Task
    from teachers.taskmodel import TaskModel

FEW = 16
"""Calibration examples of an untrained model: no shape depends on what they are."""
TIMED = 256
"""Examples that are timed."""
ROUNDS, SECONDS = 3, 0.5
"""The quietest round counts: other work on the machine only adds to it, and must rule nothing out."""
COUNTED = ("bytes", "macs", "parameters")
"""Costs that are counted; what breaks a limit of them is not timed."""
PARTS = ("student", "augment", "training", "steps", "export")
"""Blocks of a template that count; the budget has the others."""


@dataclass(frozen=True)
class Costs:
    """What an export costs.

    Attributes:
        bytes: Of its model files.
        macs: Multiply-accumulates of one input of 128 tokens, all layers run.
        parameters: Weights.
        p50_ms: Median milliseconds of a batch; None where no one asks.
        at_least: Whether the milliseconds are those of the first exit, and grow with the inputs that stay longer.
    """

    bytes: int
    macs: int
    parameters: int
    p50_ms: float | None = None
    at_least: bool = False


@dataclass(frozen=True)
class Candidate:
    """The recipe at one point of the space.

    Attributes:
        recipe: With the budget's task and teacher.
        key: Digest of all that decides what it trains; names it.
        label: What it is, in a few words.
    """

    recipe: Recipe
    key: str
    label: str

    @classmethod
    def of(cls, values: Mapping[str, Any], budget: Budget) -> Candidate:
        """Return the candidate that a template gives at a point.

        Args:
            values: Plain values of the template without ranges.
            budget: Gives the other blocks.

        Raises:
            UserError: If there can be no such recipe.
        """
        own = {name: values[name] for name in PARTS if values.get(name) is not None}
        shared = budget.shared()
        key = json_digest({**own, **{name: value for name, value in shared.items() if name != "evaluate"}})[:8]
        return cls(recipe_from_plain({"name": f"candidate-{key}", **shared, **own}, "candidate"), key, describe(own))

    def at(self, share: float) -> Recipe:
        """Return the recipe with this part of its optimizer steps; each training has a whole schedule of its own."""
        if share == 1:
            return self.recipe
        return self.recipe.model_copy(update={"steps": tuple(_shortened(step, share) for step in self.recipe.steps)})


def describe(values: Mapping[str, Any]) -> str:
    """Return a recipe's student and steps in a few words, without how they are trained."""
    layers = (values.get("student") or {}).get("layers")
    words = [] if layers is None else [f"layers {' '.join(map(str, layers)) if isinstance(layers, list) else layers}"]
    for step in values.get("steps", ()):
        name, fields = next(iter(step.items())) if isinstance(step, dict) else (step, {})
        told = {key: value for key, value in (fields or {}).items() if key not in Training.model_fields}
        shown = [f"{key} {_brief(value)}" for key, value in told.items() if not isinstance(value, dict | bool)]
        words.append(" ".join([name, *shown]))
    return ", ".join(words) or "the teacher as it is"


def _brief(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _shortened(step: Technique, share: float) -> Technique:
    if not (isinstance(step, TrainedTechnique) and step.trainings()):
        return step
    return step.with_trainings(lambda block: _part(block, share))


def _part(training: Training, share: float) -> Training:
    steps = None if training.max_steps is None else max(1, round(training.max_steps * share))
    warm = training.warmup_steps  # a number from 1 on, below it a share already
    warm = max(1.0, float(round(warm * share))) if warm >= 1 else warm
    return training.model_copy(update={"epochs": training.epochs * share, "max_steps": steps, "warmup_steps": warm})


def possible(template: Any, prepared: Prepared) -> Any:
    """Return a template without the steps that the techniques' own rules refuse on this teacher and task."""

    def kept(item: Any) -> bool:
        if item is None:
            return True
        plain = resolve(item, lambda _, held: 0 if isinstance(held, list) else held["low"])
        steps = recipe_from_plain(
            {
                "teacher": {"model": "teacher"},
                "task": {"kind": prepared.student.task.kind, "data": "."},
                "steps": [plain],
            }
        ).steps
        return not problems(steps, prepared.student, prepared.inputs)

    steps = [
        {RANGE: [one for one in item[RANGE] if kept(one)]} if is_range(item) else item for item in template["steps"]
    ]
    return {**template, "steps": steps}


def student_of(candidate: Candidate, prepared: Prepared) -> Artifact:
    """Return what the first step of a candidate gets.

    Raises:
        UserError: With every reason why there can be none, or why its steps cannot follow.
    """
    student = build_student(candidate.recipe, prepared.teachers[0], prepared.task)
    if found := problems(candidate.recipe.steps, student, prepared.inputs):
        raise UserError(*found)
    return student


def untrained(recipe: Recipe, student: Artifact, inputs: Inputs) -> Artifact:
    """Return a model of the very shape that a recipe gives, made without training.

    Raises:
        UserError: If a step is impossible on the model before it.
        CompressError: If a step gives a model that is not sound.
    """
    calibration = None if inputs.calibration is None else inputs.calibration[:FEW]
    whole = replace(inputs, calibration=calibration, folder=None)
    small = replace(whole, train=None if inputs.train is None else inputs.train[:DRY_RUN_EXAMPLES], validation=None)
    artifact = Artifact.from_model(student)
    for index, step in enumerate(recipe.steps):
        given = whole
        if isinstance(step, Surgery):
            step = step.model_copy(update={"recover": False, "objective": None})
        elif isinstance(step, TrainedTechnique):
            step, given = step.for_dry_run(), small
        with unsaid(step):
            outcome = apply_step(step, artifact, given, recipe.seed + index)
        record = Record(
            technique=step.name, config=recorded(step), export_scheme=outcome.export_scheme, weights_after=""
        )
        artifact = with_record(artifact, outcome.model, record)
    return artifact


def exported(
    recipe: Recipe,
    artifact: Artifact,
    folder: Path,
    examples: Sequence[Any] = (),
    *,
    calibration: Sequence[Any] | None = None,
    checked: bool = True,
) -> Path:
    """Write the first export that a recipe asks for: in 8 bits where ``compress run`` writes one.

    Args:
        recipe: Its ``export`` block; ONNX without one.
        artifact: What is exported.
        folder: Where to.
        examples: For the gate.
        calibration: For static ranges of 8 bits.
        checked: Whether it must answer as the model does, as closely as the recipe asks for.
    """
    block = recipe.export[0] if recipe.export else None
    chosen = block is not None and block.target == FASTEST  # which one it will be is not known yet
    target = FIRST_TARGET if block is None or chosen else block.target
    int8 = in_8_bits(target, artifact, chosen or (block is not None and block.settings.int8))
    agreement = 0.0 if not checked else 0.98 if block is None else block.settings.agreement
    options = {} if block is None or chosen else block.settings.own()
    given: dict[str, Any] = {"examples": examples, "calibration": calibration or ()}
    export(artifact, folder, target, int8=int8, agreement=agreement, options=options, **given)
    return folder


def costs_of(folder: Path, artifact: TaskModel, budget: Budget, task: Task, split: str, *, trained: bool) -> Costs:
    """Return what an export costs.

    Args:
        folder: The export.
        artifact: The model that was exported.
        budget: Says whether milliseconds count, and how they are measured.
        task: Its examples are timed.
        split: Which of them.
        trained: Whether early exits leave as they will; an untrained branch is never sure, so its first exit is timed.
    """
    timing, size = budget.limit("p50_ms"), artifact.size()
    found = Costs(file_bytes(folder), size.macs or 0, size.parameters)
    limits = [limit for limit in budget.limits if limit.what in COUNTED]
    if not budget.times or any(getattr(found, limit.what) > limit.most for limit in limits):
        return found
    at_least = not trained and read_manifest(folder).get("speed") is not None
    threads, speed = 1 if timing is None else timing.threads, 1.0 if at_least else None
    model = Runtime(folder, threads, speed=speed, spinning=False)
    batch = 1 if timing is None else timing.batch
    rounds = [latency({"export": model}, task.splits[split][:TIMED], (batch,), seconds=SECONDS) for _ in range(ROUNDS)]
    return replace(found, p50_ms=min(row.p50_ms for [row] in rounds), at_least=at_least)


def shape_costs(candidate: Candidate, prepared: Prepared, budget: Budget, split: str) -> Costs:
    """Return what a candidate will cost, from an untrained export of its shape.

    Raises:
        UserError: With every reason why there can be no such candidate.
        CompressError: If it cannot be made or exported.
    """
    student = student_of(candidate, prepared)
    model = untrained(candidate.recipe, student, prepared.inputs)
    assert prepared.task is not None
    seen = None if prepared.inputs.calibration is None else prepared.inputs.calibration[:FEW]
    with tempfile.TemporaryDirectory() as temporary:
        folder = exported(candidate.recipe, model, Path(temporary) / "export", calibration=seen, checked=False)
        return costs_of(folder, model, budget, prepared.task, split, trained=False)
