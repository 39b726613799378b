"""The one training loop: teachers, students and every technique that trains go through it.

Devices, processes and mixed precision are accelerate's; the loop owns order, checkpoints, progress and early stopping.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from eval.errors import CompressError, DivergedError, UserError
from eval.inference import Answer
from eval.metrics import score
from eval.statistics import agreement
from eval.task import Examples
from teachers.batches import LengthGroupedBatches
from teachers.checkpoint import BEST, FILE, load_checkpoint, load_weights, save_checkpoint, save_weights
from teachers.config import Training
from teachers.encoder import base_encoder, word_embeddings
from teachers.features import Batch, Rows
from teachers.objective import Loss, Objective, TaskLoss
from teachers.observing import observe
from teachers.progress import Progress
from teachers.scoring import answers, collapsed, rows_of
from teachers.signals import TeacherSource
from teachers.taskmodel import TaskModel, weights_digest

logger = logging.getLogger("teachers.training")

WATCHED = 512
"""Validation examples on which student and teacher are compared while training goes on."""


@dataclass
class Course:
    """Where a training stands; plain values, so that a checkpoint holds them as JSON.

    Attributes:
        step: Updates made.
        history: One entry an epoch: step, loss, its terms, score, seconds, tokens a second.
        best: Best validation score so far.
        stale: Epochs since then.
        sums: Loss terms added up since the last entry, with ``steps``, ``tokens`` and ``seconds``.
    """

    step: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    best: float | None = None
    stale: int = 0
    sums: dict[str, float] = field(default_factory=dict)


def train(
    student: TaskModel,
    examples: Examples,
    objective: Objective | None = None,
    training: Training | None = None,
    *,
    seed: int = 13,
    validation: Examples | None = None,
    folder: Path | None = None,
    identity: str = "",
    teacher: TeacherSource | None = None,
) -> list[dict[str, Any]]:
    """Train the network of ``student`` in place.

    Args:
        student: What is trained.
        examples: What it learns from.
        objective: What is minimised; the labels' own loss by default.
        training: How.
        seed: Decides order, dropout and masks; the global random state is left as it was.
        validation: Scored after every epoch; the best epoch is kept if ``training.keep`` says so.
        folder: Where checkpoints go. If it holds one of the same run, training goes on from there.
        identity: Further words that make a run what it is (the technique's config), so that no checkpoint is mixed up.
        teacher: If given, the history also says how often the student agrees with it on the first ``WATCHED``
            validation examples.

    Returns:
        The history: one entry an epoch.

    Raises:
        UserError: If there is nothing to train on, or the checkpoint in ``folder`` is of another run.
        DivergedError: If the loss is not finite or the outputs no longer depend on the input.
    """
    training = training or Training()
    objective = objective or TaskLoss()
    if not len(examples):
        raise UserError(f"nothing to train on: {examples.name} is empty")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        rows = rows_of(student, examples, seed)
        loss = objective.bind(student, rows)
        key = hashlib.sha256(
            "|".join(
                [training.model_dump_json(), str(seed), examples.digest, weights_digest(student.model), identity]
            ).encode()
        ).hexdigest()
        loop = _Loop(student, rows, loss, training, seed, validation, folder, key, teacher)
        return loop.run()


class _Loop:
    def __init__(
        self,
        student: TaskModel,
        rows: Rows,
        loss: Loss,
        training: Training,
        seed: int,
        validation: Examples | None,
        folder: Path | None,
        key: str,
        teacher: TeacherSource | None,
    ) -> None:
        self.student, self.rows, self.loss, self.training = student, rows, loss, training
        self.validation = validation if validation is not None and len(validation) else None
        self.folder, self.key, self.teacher = folder, key, teacher
        self.batches = LengthGroupedBatches(rows.lengths, training.batch_size, seed, training.group_by_length)
        self.total = max(1, math.ceil(training.epochs * len(self.batches)))
        if training.max_steps is not None:
            self.total = min(self.total, training.max_steps)
        self.accelerator = _accelerator(training.precision)
        _freeze(student, training)
        self.modules = (student.model.to(self.accelerator.device), loss.modules.to(self.accelerator.device))
        self.model = self.accelerator.prepare_model(student.model)
        self.optimizer = self.accelerator.prepare_optimizer(_optimizer(self.modules, training))
        self.course = Course()
        self.best_weights: dict[str, torch.Tensor] | None = None

    @cached_property
    def teacher_answers(self) -> list[Answer]:
        """The teacher's answers to the examples that are watched; none if it gives none of this kind."""
        if self.teacher is None or self.validation is None or self.student.task.kind == "masked-lm":
            return []
        return self.teacher.answers(self.validation[:WATCHED])

    def run(self) -> list[dict[str, Any]]:
        self._resume()
        self.student.model.train()
        try:
            with Progress(self.total, self.course.step, self.student.name) as self.progress:
                self._steps()
        finally:
            self.student.model.eval()
            for parameter in self.student.model.parameters():
                parameter.requires_grad_(True)
        if self.folder is not None and self.course.best is not None and self.training.keep == "best":
            load_weights(self.folder / BEST, self.student.model)
        elif self.best_weights is not None:
            self.student.model.load_state_dict(self.best_weights)
        self.student.model.cpu()
        return self.course.history

    def _steps(self) -> None:
        saved = time.perf_counter()
        for step, indices, last_of_epoch in self._schedule():
            started = time.perf_counter()
            self._update(indices, step)
            self.course.step = step + 1
            self._count("seconds", time.perf_counter() - started)
            if last_of_epoch or self.course.step == self.total:
                if self._end_of_epoch():
                    return
                self._checkpoint()
                saved = time.perf_counter()
            elif time.perf_counter() - saved >= self.training.checkpoint_seconds:
                self._checkpoint()
                saved = time.perf_counter()

    def _schedule(self) -> Iterator[tuple[int, list[int], bool]]:
        """Yield (step, rows, whether the epoch ends), from where the course stands to the last update."""
        an_epoch = len(self.batches)
        step = self.course.step
        while step < self.total:
            self.epoch, done = divmod(step, an_epoch)
            self.batches.set_epoch(self.epoch)
            for position, indices in enumerate(self.batches):
                if position < done:
                    continue
                if step >= self.total:
                    return
                yield step, indices, position == an_epoch - 1
                step += 1

    def _update(self, indices: list[int], step: int) -> None:
        with self.accelerator.split_between_processes(indices, apply_padding=True) as own:
            batch = self.rows.batch(own, self.epoch, progress=step / self.total).to(self.accelerator.device)
        for group in self.optimizer.param_groups:
            group["lr"] = self.training.learning_rate * rate(self.training, step, self.total)
        pieces = batch.split(self.training.accumulation)
        terms: dict[str, float] = {}
        for number, piece in enumerate(pieces):
            last = number == len(pieces) - 1
            with contextlib.nullcontext() if last else self.accelerator.no_sync(self.model):
                for name, value in self._backward(piece, len(piece.rows) / len(batch.rows)).items():
                    terms[name] = terms.get(name, 0.0) + value
        total = sum(terms.values())
        if not math.isfinite(total):
            raise DivergedError(
                f"training of {self.student.name} diverged: the loss of update {step + 1} of {self.total} is {total} "
                f"({', '.join(f'{name} {value:.4g}' for name, value in terms.items())}); try a learning rate below "
                f"{self.training.learning_rate:g}, a longer warm-up, or precision fp32"
            )
        if self.training.max_grad_norm:
            parameters = [p for module in self.modules for p in module.parameters() if p.requires_grad]
            self.accelerator.clip_grad_norm_(parameters, self.training.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        tokens = int(batch.mask.sum())
        for name, value in terms.items():
            self._count(f"loss.{name}", value)
        self._count("steps", 1)
        self._count("tokens", tokens)
        self.progress.update(step + 1, total, tokens)

    def _backward(self, piece: Batch, share: float) -> dict[str, float]:
        with self.accelerator.autocast():
            signals = observe(self.student.model, piece.inputs, self.loss.reads, call=self.model)
            terms = {name: value * share for name, value in self.loss(signals, piece).items()}
        self.accelerator.backward(sum(terms.values()))
        values = torch.stack([value.detach().float() for value in terms.values()])
        return dict(zip(terms, self.accelerator.reduce(values, "mean").tolist(), strict=True))

    def _count(self, name: str, value: float) -> None:
        self.course.sums[name] = self.course.sums.get(name, 0.0) + value

    def _end_of_epoch(self) -> bool:
        """Score, remember the best, and tell whether training stops early."""
        sums, course = self.course.sums, self.course
        terms = {name[5:]: value / sums["steps"] for name, value in sums.items() if name.startswith("loss.")}
        entry: dict[str, Any] = {
            "step": course.step,
            "loss": sum(terms.values()),
            "terms": terms,
            "seconds": sums["seconds"],
            "tokens_per_second": sums["tokens"] / max(sums["seconds"], 1e-9),
        }
        course.sums = {}
        if self.validation is not None:
            self._score(entry)
        course.history.append(entry)
        figures = f"loss {entry['loss']:.4f}" + (f", score {entry['score']:.4f}" if "score" in entry else "")
        logger.info("%s: update %d of %d, %s", self.student.name, course.step, self.total, figures)
        return self.training.patience is not None and course.stale >= self.training.patience

    def _score(self, entry: dict[str, Any]) -> None:
        course, validation = self.course, self.validation
        if validation is None:
            return
        if collapsed(self.student, validation):
            raise DivergedError(
                f"training of {self.student.name} collapsed after update {course.step}: it gives the same output for "
                f"every input; try a learning rate below {self.training.learning_rate:g} or a longer warm-up"
            )
        found = answers(self.student, validation)
        entry["scores"] = score(self.student.task, found, validation)
        if self.teacher_answers:
            alike = agreement(self.student.task.kind, found[:WATCHED], self.teacher_answers)
            entry["agreement"] = next(iter(alike.values()))
        entry["score"] = next(iter(entry["scores"].values()))
        self.progress.score = entry["score"]
        if course.best is not None and entry["score"] <= course.best:
            course.stale += 1
            return
        course.best, course.stale = entry["score"], 0
        if self.training.keep == "best":
            if self.folder is not None:
                if self.accelerator.is_main_process:
                    save_weights(self.folder / BEST, self.student.model)
                self.accelerator.wait_for_everyone()
            else:
                state = self.student.model.state_dict()
                self.best_weights = {name: tensor.detach().clone() for name, tensor in state.items()}

    def _checkpoint(self) -> None:
        if self.folder is None or not self.accelerator.is_main_process:
            return
        try:
            save_checkpoint(self.folder, self.modules, self.optimizer, {"key": self.key, **vars(self.course)})
        except OSError as error:
            raise CompressError(f"{self.folder}: the checkpoint could not be written ({error})") from error

    def _resume(self) -> None:
        if self.folder is None or not (self.folder / FILE).is_file():
            return
        state = load_checkpoint(self.folder, self.modules, self.optimizer)
        if state.pop("key") != self.key:
            raise UserError(
                f"{self.folder / FILE}: belongs to another run (other data, settings, seed or starting weights); "
                "remove it to train anew"
            )
        self.course = Course(**state)
        logger.info("%s: going on after update %d of %d", self.student.name, self.course.step, self.total)


def rate(training: Training, step: int, total: int) -> float:
    """Return the part of the peak learning rate that update ``step`` (from 0) of ``total`` takes."""
    warm = math.ceil(training.warmup * total)
    if step < warm:
        return (step + 1) / warm
    left = (total - step) / max(total - warm, 1)
    if training.schedule == "linear":
        return left
    if training.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * (1 - left)))
    return 1.0


def _optimizer(modules: tuple[nn.Module, ...], training: Training) -> torch.optim.Optimizer:
    trained = [p for module in modules for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": training.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=training.learning_rate,
        betas=training.betas,
        eps=training.eps,
        fused=True,
    )


def _freeze(student: TaskModel, training: Training) -> None:
    parts = {"embeddings": word_embeddings, "encoder": base_encoder}
    for part in training.freeze:
        parts[part](student.model).requires_grad_(False)


def _accelerator(precision: str) -> Any:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import DistributedDataParallelKwargs

    if precision == "auto":
        capable = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
        precision = "bf16" if capable else "fp32"
    AcceleratorState._reset_state()
    return Accelerator(
        cpu=not torch.cuda.is_available(),
        mixed_precision="no" if precision == "fp32" else precision,
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
    )
