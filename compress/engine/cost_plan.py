"""What a recipe will cost: sizes, optimizer steps and a rough time, before it is run."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from compress.augment.copies import sentences_of
from compress.augment.tinybert_rule import TinyBertRule
from compress.augment.training_set import expected
from compress.engine.preview import preview
from compress.technique import TrainedTechnique
from eval.cost.machine import cpu_features
from eval.data.loading import Task
from eval.data.roles import Roles
from eval.data.sources import find_sources
from eval.proof.contributions import units_of
from eval.proof.paired_proportions import Discordance, examples_needed, smallest_margin
from eval.task import Examples, TaskSpec
from teachers.anatomy.encoder import base_encoder, has_decoder, layer_count
from teachers.finetuning.in_domain import text_task
from teachers.number_format import mixed_precision
from teachers.pretraining.text.tokenizer_training import Sentences
from teachers.seeding import seeded
from teachers.taskmodel import TaskModel, logits_of, set_task
from teachers.training.config import Training
from teachers.training.precision import bf16_speedup

if TYPE_CHECKING:
    from compress.recipe import Recipe
    from compress.recipe.blocks import FinetuneBlock
    from compress.technique import Inputs

SAMPLE = 256
"""Examples whose lengths stand for all."""
MEASURED_ROWS = 8
"""Rows of the optimizer steps that are timed; time grows in proportion to rows."""
MEASURED_SECONDS = 2.0
DISAGREEMENT = 0.05
"""Share of examples on which one model alone is right, assumed before any is known; reports count the real one."""
CHARACTERS = 4.5
"""Characters of a token, about, where text is not tokenized for a plan; of Chinese it is one."""


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
    """Sizes and work of a recipe, in order.

    Attributes:
        sizes: Of the models.
        steps: Their work.
        proof: In sentences, what the examples can show.
        bf16_speedup: How many times as fast this processor multiplies in bf16; None if it has no instructions for it or
            nothing of the recipe is trained in float32 on it.
    """

    sizes: tuple[SizeRow, ...]
    steps: tuple[StepRow, ...]
    proof: tuple[str, ...] = ()
    bf16_speedup: float | None = None

    @property
    def seconds(self) -> float:
        """Rough time of everything."""
        return sum(step.seconds for step in self.steps)


def make_plan(recipe: Recipe) -> Plan:
    """Predict sizes, optimizer steps and time of a recipe; a few optimizer steps are timed, nothing is kept.

    Raises:
        UserError: With every reason why the recipe cannot run.
    """
    prepared = preview(recipe)
    train = prepared.inputs.train or Examples((), "train")
    sizes: list[SizeRow] = []
    steps: list[StepRow] = []
    block = None if recipe.teacher is None else recipe.teacher.finetune
    times = 1.0  # examples of a step for each of the task
    if recipe.augment is not None and prepared.task is not None:
        count, rule = expected(recipe.augment, train, prepared.task.spec, recipe.columns)
        times = count / max(1, len(train))
        steps += [_predicting(rule, train)] if isinstance(rule, TinyBertRule) else []
    steps += _pretraining(recipe, prepared.teachers)
    for teacher in prepared.teachers:
        sizes.append(_size(teacher.name, teacher))
        if block is not None and prepared.task is not None:
            steps += _finetuning(teacher, prepared.task, train, block)
        if any("teacher" in step.needed() for step in recipe.steps):
            steps.append(_signals(teacher, train, times))
    own = _own_steps(recipe, prepared.student, prepared.inputs, train, times)
    sizes += own.sizes
    steps += own.whole
    if recipe.evaluate is not None and recipe.evaluate.baseline:
        updates, seconds = sum(row.updates for row in own.whole), sum(row.seconds for row in own.whole)
        steps.append(StepRow("baseline without teacher", 0, updates, 0.0, seconds))
    for number, left_out in enumerate(recipe.steps if recipe.ablate else ()):
        rest = own.alone[number + 1 :]
        updates, seconds = sum(row.updates for row in rest), sum(row.seconds for row in rest)
        steps.append(StepRow(f"without {left_out.name}", 0, updates, 0.0, seconds))
    proof = tuple(examples_that_report(recipe, prepared.roles))
    in_float32 = any(mixed_precision(training.precision) == "no" for training in _trainings(recipe))
    timed = in_float32 and not torch.cuda.is_available()
    return Plan(tuple(sizes), tuple(steps), proof, bf16_speedup(cpu_features()) if timed else None)


@dataclass(frozen=True)
class _OwnSteps:
    """What the steps of a recipe cost.

    Attributes:
        sizes: The student before them, and after each that changes it.
        alone: A row for each training on the examples of the task alone.
        whole: The same with what is augmented.
    """

    sizes: list[SizeRow]
    alone: list[StepRow]
    whole: list[StepRow]


def _own_steps(recipe: Recipe, student: TaskModel, inputs: Inputs, train: Examples, times: float) -> _OwnSteps:
    """Time a few optimizer steps of each step of a recipe; a step that trains nothing is carried out.

    Args:
        recipe: The recipe.
        student: What its first step gets.
        inputs: Data and teacher.
        train: Training examples of the task.
        times: Examples that are learned from, for each of these.
    """
    found, model = _OwnSteps([_size("student", student)], [], []), student
    for index, step in enumerate(recipe.steps):
        name = f"{index + 1}. {step.name}"
        if isinstance(step, TrainedTechnique):
            trained = step.network_for(model)
            if trained is not model:
                found.sizes.append(_size(f"after {name}", trained))
                model = trained
            trainings = step.trainings()
            for number, training in enumerate(trainings, start=1):
                called = name if len(trainings) == 1 else f"{name}, training {number} of {len(trainings)}"
                row = _work(called, model, train, training)
                found.alone.append(row)
                found.whole.append(_repeated(row, training, times))
            continue
        own = TaskModel(copy.deepcopy(model.model), model.tokenizer, model.task, name=model.name)
        started = time.perf_counter()
        changed = step.apply(own, inputs, torch.Generator().manual_seed(recipe.seed)).model
        row = StepRow(name, 0, 0, 0.0, time.perf_counter() - started)
        found.alone.append(row)
        found.whole.append(row)
        if changed.size() != model.size():
            found.sizes.append(_size(f"after {name}", changed))
        model = changed
    return found


def distilling_seconds(teacher: TaskModel, layers: int, sample: Examples, examples: int, training: Training) -> float:
    """Return the rough time to distil a teacher into some of its layers on this machine.

    Args:
        teacher: The model; a few optimizer steps of its own shape are timed, on a copy.
        layers: Layers of the student.
        sample: Examples whose lengths stand for all.
        examples: How many the student learns from.
        training: How it learns.
    """
    times = examples / max(1, len(sample))
    learning = _repeated(_work("student", teacher, sample, training), training, times).seconds
    return learning * layers / layer_count(teacher.model) + _signals(teacher, sample, times).seconds


def _trainings(recipe: Recipe) -> Iterator[Training]:
    """Yield the settings of everything that is trained."""
    if recipe.teacher is not None and recipe.teacher.pretrain is not None:
        yield from (stage.training for stage in recipe.teacher.pretrain.stages)
    if recipe.teacher is not None and (block := recipe.teacher.finetune) is not None:
        yield block.training
        yield from () if block.in_domain is None else (block.in_domain,)
    for step in recipe.steps:
        yield from step.trainings() if isinstance(step, TrainedTechnique) else ()


def examples_that_report(recipe: Recipe, roles: Roles | None) -> Iterator[str]:
    """Yield how many examples the margin needs, and what those that report can show, if so many answers differ."""
    block = recipe.evaluate
    if roles is None or block is None or block.against == "none" or not roles.task.splits.get(roles.report):
        return
    examples = roles.task.splits[roles.report]
    groups = [example.get("group") for example in examples]
    counts = Discordance(len(examples), DISAGREEMENT / 2 * len(examples), DISAGREEMENT / 2 * len(examples))
    needed = examples_needed(DISAGREEMENT, block.margin) if 0 < block.margin < 1 else None
    said = f"{len(examples):,} examples of {roles.report}"
    said += f" in {len(units_of(len(examples), groups, len(examples))):,} groups" if any(groups) else ""
    yield (
        f"proof, if the models differ on {DISAGREEMENT:.0%} of the examples and are equally good: {said} show "
        f"in four of five cases a margin of {smallest_margin(counts):.2g}"
        + (f"; the margin {block.margin:g} needs {needed:,}" if needed else "")
    )
    if any(groups):
        yield "examples of a group are right and wrong together, so they show less than as many single ones"


def updates_of(training: Training, rows: int) -> int:
    """Return how many optimizer steps the training loop makes on ``rows`` inputs."""
    total = max(1, math.ceil(training.epochs * math.ceil(rows / training.batch_size)))
    return total if training.max_steps is None else min(total, training.max_steps)


def _size(name: str, model: TaskModel) -> SizeRow:
    size = model.size()
    return SizeRow(name, size.parameters, size.bytes, size.macs or 0)


def _work(name: str, model: TaskModel, train: Examples, training: Training) -> StepRow:
    rows, tokens = _rows(model, train)
    updates = updates_of(training, rows)
    # Without layers, a step is mostly AdamW's work on the embedding matrix, which does not grow with the rows.
    timed = MEASURED_ROWS if layer_count(model.model) else training.batch_size
    seconds = updates * training.batch_size * _seconds_a_row(model, round(tokens), learns=True, timed=timed)
    return StepRow(name, rows, updates, tokens, seconds)


def _pretraining(recipe: Recipe, teachers: Sequence[TaskModel]) -> Iterator[StepRow]:
    """Yield the work of every stage, if there is any."""
    block = None if recipe.teacher is None else recipe.teacher.pretrain
    if block is None:
        return
    teacher = teachers[0]
    encoder = _without_head(teacher)
    for number, stage in enumerate(block.stages, start=1):
        updates = stage.training.max_steps
        if updates is None:
            text = Sentences([found["train"] for name in block.text if "train" in (found := find_sources(name, {}))])
            characters = sum(map(len, text))
            updates = updates_of(stage.training, round(characters / CHARACTERS / stage.length) * len(stage.tasks))
        rows = updates * stage.training.batch_size
        seconds = rows * _seconds_a_row(encoder, stage.length, learns=True)
        yield StepRow(f"{teacher.name}.pretrain {number}", rows, updates, float(stage.length), seconds)


def _finetuning(teacher: TaskModel, task: Task, train: Examples, block: FinetuneBlock) -> Iterator[StepRow]:
    """Yield the work of the fine-tunings that make a teacher, and what comes before them on the task's own texts."""
    if (training := block.in_domain) is not None:
        row = _work(f"{teacher.name}.finetune.in_domain", _without_head(teacher), text_task(task).train, training)
        times = len({seed for _, seed in block.runs(seed=0)})
        yield replace(row, updates=row.updates * times, seconds=row.seconds * times)
    yield _fitting(teacher, train, block)


def _without_head(teacher: TaskModel) -> TaskModel:
    """Return the encoder alone, as a stand-in for one with a head that answers at few places."""
    spec = TaskSpec(kind="embedding", metric="nearest", max_length=teacher.task.max_length)
    network = copy.deepcopy(base_encoder(teacher.model))
    set_task(network.config, spec)
    return TaskModel(network, teacher.tokenizer, spec, name=teacher.name)


def _fitting(teacher: TaskModel, train: Examples, block: FinetuneBlock) -> StepRow:
    """Return the work of all fine-tunings that make a teacher: one, or every member of a sweep."""
    row = _work(f"{teacher.name}.finetune", teacher, train, block.training)
    trainings = [training for training, _ in block.runs(seed=0)]
    updates = [updates_of(training, row.rows) for training in trainings]
    read = sum(count * training.batch_size for count, training in zip(updates, trainings, strict=True))
    seconds = row.seconds * read / (row.updates * block.training.batch_size)
    return replace(row, updates=sum(updates), seconds=seconds)


def _repeated(row: StepRow, training: Training, times: float) -> StepRow:
    """Return the work on ``times`` as many rows."""
    rows = round(row.rows * times)
    updates = updates_of(training, rows)
    return replace(row, rows=rows, updates=updates, seconds=row.seconds * updates / row.updates)


def _predicting(rule: TinyBertRule, train: Examples) -> StepRow:
    """Return the work of the masked-language model that proposes words; it reads a text once for every word."""
    sample = train.sample(SAMPLE, seed=0)
    lengths = rule.work([sentence for example in sample for sentence in sentences_of(example)])
    rows = round(len(train) * len(lengths) / max(1, len(sample)))
    tokens = sum(lengths) / max(1, len(lengths))
    seconds = rows * _seconds_a_row(rule.masked.model, round(tokens), learns=False)
    return StepRow("augment", rows, 0, tokens, seconds)


def _signals(teacher: TaskModel, train: Examples, times: float) -> StepRow:
    rows, tokens = _rows(teacher, train)
    rows = round(rows * times)
    return StepRow(
        f"{teacher.name} outputs", rows, 0, tokens, rows * _seconds_a_row(teacher, round(tokens), learns=False)
    )


def _rows(model: TaskModel, train: Examples) -> tuple[int, float]:
    """Return how many inputs the examples give, and their mean length in tokens."""
    sample = train.sample(SAMPLE, seed=0)
    if not len(sample):
        return 0, 1.0
    features = model.encoder.encode(sample)
    rows = round(len(train) * len(features) / len(sample))
    return rows, sum(len(feature.ids) for feature in features) / max(1, len(features))


def _seconds_a_row(model: TaskModel, tokens: int, *, learns: bool, timed: int = MEASURED_ROWS) -> float:
    """Time forward passes, with backward and AdamW if it ``learns``, on a copy of the model."""
    with seeded(0):
        network: Any = copy.deepcopy(model.model).train(learns)
        ids = torch.randint(0, int(network.config.vocab_size), (timed, max(1, tokens)))
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        inputs |= {"decoder_input_ids": ids} if has_decoder(network) else {}
        optimizer = torch.optim.AdamW(network.parameters(), lr=0.0, fused=True)
        times: list[float] = []
        # The first pass warms caches up and is not counted.
        while len(times) < 2 or (sum(times) < MEASURED_SECONDS and len(times) < 20):
            started = time.perf_counter()
            with torch.set_grad_enabled(learns):
                logits = logits_of(network(**inputs), network.config, inputs["attention_mask"])
                if learns:
                    torch.autograd.backward(logits.float().square().mean())
                    optimizer.step()
                    optimizer.zero_grad()
            times.append(time.perf_counter() - started)
    return min(times[1:]) / timed
