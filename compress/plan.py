"""What a recipe will cost: sizes, updates and a rough time, before it is run."""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from compress.preview import preview
from compress.technique import TrainedTechnique
from eval.task import Examples
from teachers.config import Training
from teachers.taskmodel import TaskModel, logits_of

if TYPE_CHECKING:
    from compress.recipe import Recipe

SAMPLE = 256
"""Examples whose lengths stand for all."""
MEASURED_ROWS = 8
"""Rows of the updates that are timed; time grows in proportion to rows."""
MEASURED_SECONDS = 2.0


@dataclass(frozen=True)
class SizeRow:
    """The size of a model at one point of a recipe."""

    name: str
    parameters: int
    bytes: int
    macs: int


@dataclass(frozen=True)
class StepRow:
    """The work of one step.

    Attributes:
        name: What works.
        rows: Model inputs of one epoch (windows, for long texts).
        updates: Optimizer steps.
        tokens: Mean tokens of an input.
        seconds: Rough time on this machine.
    """

    name: str
    rows: int
    updates: int
    tokens: float
    seconds: float


@dataclass(frozen=True)
class Plan:
    """Sizes and work of a recipe, in order."""

    sizes: tuple[SizeRow, ...]
    steps: tuple[StepRow, ...]

    @property
    def seconds(self) -> float:
        """Rough time of everything."""
        return sum(step.seconds for step in self.steps)


def make_plan(recipe: Recipe) -> Plan:
    """Predict sizes, updates and time of a recipe; a few updates are timed, nothing is kept.

    Raises:
        UserError: With every reason why the recipe cannot run.
    """
    prepared = preview(recipe)
    train = prepared.inputs.train or Examples((), "train")
    sizes: list[SizeRow] = []
    steps: list[StepRow] = []
    block = None if recipe.teacher is None else recipe.teacher.finetune
    for teacher in prepared.teachers:
        sizes.append(_size(teacher.name, teacher))
        if block is not None:
            steps.append(_work(f"{teacher.name}.finetune", teacher, train, block.training))
        if any("teacher" in step.needed() for step in recipe.steps):
            steps.append(_signals(teacher, train))
    model: TaskModel = prepared.student
    sizes.append(_size("student", model))
    for index, step in enumerate(recipe.steps):
        name = f"{index + 1}. {step.name}"
        if isinstance(step, TrainedTechnique):
            steps.append(_work(name, model, train, step.training))
            continue
        own = TaskModel(copy.deepcopy(model.model), model.tokenizer, model.task, name=model.name)
        started = time.perf_counter()
        changed = step.apply(own, prepared.inputs, torch.Generator().manual_seed(recipe.seed)).student
        steps.append(StepRow(name, 0, 0, 0.0, time.perf_counter() - started))
        if changed.size() != model.size():
            sizes.append(_size(f"after {name}", changed))
        model = changed
    if recipe.evaluate is not None and recipe.evaluate.baseline:
        again = [row for row in steps if row.name[0].isdigit()]
        steps.append(
            StepRow(
                "baseline without teacher", 0, sum(row.updates for row in again), 0.0, sum(row.seconds for row in again)
            )
        )
    return Plan(tuple(sizes), tuple(steps))


def updates_of(training: Training, rows: int) -> int:
    """Return how many updates the training loop makes on ``rows`` inputs."""
    total = max(1, math.ceil(training.epochs * math.ceil(rows / training.batch_size)))
    return total if training.max_steps is None else min(total, training.max_steps)


def _size(name: str, model: TaskModel) -> SizeRow:
    size = model.size()
    return SizeRow(name, size.parameters, size.bytes, size.macs or 0)


def _work(name: str, model: TaskModel, train: Examples, training: Training) -> StepRow:
    rows, tokens = _rows(model, train)
    updates = updates_of(training, rows)
    seconds = updates * training.batch_size * _seconds_a_row(model, round(tokens), learns=True)
    return StepRow(name, rows, updates, tokens, seconds)


def _signals(teacher: TaskModel, train: Examples) -> StepRow:
    rows, tokens = _rows(teacher, train)
    return StepRow(
        f"{teacher.name} signals", rows, 0, tokens, rows * _seconds_a_row(teacher, round(tokens), learns=False)
    )


def _rows(model: TaskModel, train: Examples) -> tuple[int, float]:
    """Return how many inputs the examples give, and their mean length in tokens."""
    sample = train.sample(SAMPLE, seed=0)
    if not len(sample):
        return 0, 1.0
    features = model.encoder.encode(sample)
    rows = round(len(train) * len(features) / len(sample))
    return rows, sum(len(feature.ids) for feature in features) / max(1, len(features))


def _seconds_a_row(model: TaskModel, tokens: int, *, learns: bool) -> float:
    """Time forward passes, with backward and AdamW if it ``learns``, on a copy of the model."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network: Any = copy.deepcopy(model.model).train(learns)
        ids = torch.randint(0, int(network.config.vocab_size), (MEASURED_ROWS, max(1, tokens)))
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        optimizer = torch.optim.AdamW(network.parameters(), lr=0.0, fused=True)
        times: list[float] = []
        # The first pass warms caches up and is not counted.
        while len(times) < 2 or (sum(times) < MEASURED_SECONDS and len(times) < 20):
            started = time.perf_counter()
            with torch.set_grad_enabled(learns):
                logits = logits_of(network(**inputs))
                if learns:
                    torch.autograd.backward(logits.float().square().mean())
                    optimizer.step()
                    optimizer.zero_grad()
            times.append(time.perf_counter() - started)
    return min(times[1:]) / MEASURED_ROWS
