"""The one training loop: teachers, students and every technique that trains go through it.

Devices, processes and mixed precision are accelerate's; the loop owns order, checkpoints, progress and early stopping.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from eval.errors import CompressError, DivergedError, UserError
from eval.files.full_disk import full_disk
from eval.progress.stages import advance, under_way
from eval.task import Examples
from teachers.anatomy.padding import kept_silent
from teachers.data.batches import MixedBatches
from teachers.losses.loss import Objective
from teachers.losses.task_loss import TaskLoss
from teachers.number_format import mixed_precision
from teachers.renamed import recorded_json
from teachers.seeding import seeded
from teachers.signals.hooks import observed
from teachers.signals.model_teacher import TeacherSource
from teachers.taskmodel import TaskModel, weights_digest
from teachers.training.accumulation import Accumulation
from teachers.training.checkpoint import (
    BEST,
    FILE,
    CheckpointPace,
    load_checkpoint,
    load_weights,
    random_states,
    save_checkpoint,
    save_weights,
)
from teachers.training.checkpoint_average import LastWeights
from teachers.training.config import Training
from teachers.training.dropout import dropout_set
from teachers.training.freezing import freeze, unfreezing
from teachers.training.kept_memory import freed_memory_kept, warn_if_short
from teachers.training.layer_groups import rate_factors
from teachers.training.learning_rate import rate
from teachers.training.monitor import joined
from teachers.training.precision import back_to_float32, differentiable_attention, in_float32
from teachers.training.processes import accelerator
from teachers.training.scheduled_modules import Scheduled, parameter_groups, progress_at
from teachers.training.step_figures import StepFigures
from teachers.training.tracking import TrainingLog
from teachers.training.training_task import BoundTask, Learnable, TrainingTask

logger = logging.getLogger("teachers.training.loop")

MOST_LOSSES = 200
"""Means of the loss that the history of a training keeps, for a plot."""


@dataclass
class TrainState:
    """Where a training stands; plain values, so that a checkpoint holds them as JSON.

    Attributes:
        step: Updates made.
        history: One entry an epoch: step, loss, its terms, the losses on the way, score, seconds, tokens a second, and
            the number format of the forward pass if it was not float32; the last one has ``averaged`` where its score
            is that of a mean.
        best: Best validation score so far.
        stale: Epochs since then.
        averaged: Steps after which the weights were taken whose mean is returned.
        sums: Loss terms added up since the last entry, with ``steps``, ``tokens`` and ``seconds``.
        losses: Pairs of a step and the mean loss up to there, since the last entry.
        pending: Losses added up since the last of these.
    """

    step: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    best: float | None = None
    stale: int = 0
    averaged: list[int] = field(default_factory=list)
    sums: dict[str, float] = field(default_factory=dict)
    losses: list[list[float]] = field(default_factory=list)
    pending: float = 0.0


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
        examples: What it learns from; the labels' own loss leaves out those without a label.
        objective: What is minimised; the labels' own loss by default.
        training: How.
        seed: Decides order, dropout and masks; the global random state is left as it was.
        validation: Scored after every epoch; the best epoch is kept if ``training.keep`` says so.
        folder: Where checkpoints go. If it holds one of the same run, training goes on from there.
        identity: Further words that make a run what it is (the technique's config), so that no checkpoint is mixed up.
        teacher: If given, the history also says how often the student agrees with it on validation examples.

    Returns:
        The history: one entry an epoch.

    Raises:
        UserError: If there is nothing to train on, or the checkpoint in ``folder`` is of another run.
        DivergedError: If the loss is not finite, or the student collapses (see ``teachers.training.monitor``).
    """
    training_task = TrainingTask(student, examples, objective or TaskLoss(), validation, teacher)
    return learn([training_task], training, seed=seed, folder=folder, identity=identity)


def learn(
    training_tasks: Sequence[Learnable],
    training: Training | None = None,
    *,
    seed: int = 13,
    folder: Path | None = None,
    identity: str = "",
) -> list[dict[str, Any]]:
    """Train on one training task or on several, whose students may share parts; the rest is as in ``train``."""
    training = training or Training()
    with seeded(seed):
        bound = [training_task.bind(seed) for training_task in training_tasks]
        digests = [word for one in bound for word in (one.rows.digest, weights_digest(one.student.model))]
        words = [recorded_json(training), str(seed), *digests, identity]
        loop = _Loop(bound, training, seed, folder, hashlib.sha256("|".join(words).encode()).hexdigest())
        with freed_memory_kept(loop.device.type):
            history = loop.run()
            del loop  # the optimizer's states are given back to the system as well
    return history


class _Loop:
    def __init__(
        self, training_tasks: list[BoundTask], training: Training, seed: int, folder: Path | None, key: str
    ) -> None:
        self.training_tasks, self.training = training_tasks, training
        self.seed, self.folder, self.key = seed, folder, key
        self.networks = [training_task.student.model for training_task in training_tasks]
        self.name = " and ".join(dict.fromkeys(training_task.student.name for training_task in training_tasks))
        self.batches = MixedBatches([training_task.batches(training, seed) for training_task in training_tasks], seed)
        self.total = max(1, math.ceil(training.epochs * len(self.batches)))
        if training.max_steps is not None:
            self.total = min(self.total, training.max_steps)
        self.accelerator = accelerator(mixed_precision(training.precision))
        self.device = self.accelerator.device
        self.accumulation = Accumulation(self.accelerator, training.gradient_accumulation_steps)
        if len({id(network) for network in self.networks}) > 1 and self.accelerator.num_processes > 1:
            raise UserError("several networks are trained together by one process; start it without torchrun")
        self.modules = tuple(
            module.to(self.device) for module in (*self.networks, *(one.loss.modules for one in training_tasks))
        )
        run = [observed(training_task.student.model, training_task.loss.reads) for training_task in training_tasks]
        self.prepared = list({id(part): part for part in run}.values())
        for part in self.prepared:  # number format alone: gradients are exchanged in teachers.training.accumulation
            self.accelerator.prepare_model(part, evaluation_mode=True)
        self.accumulation.begin(self.modules)
        for training_task in training_tasks:
            freeze(training_task.student.model, training)
        with in_float32(self.prepared):
            watches = {training_task.name: training_task.watch() for training_task in training_tasks}
        self.watches = {name: watch for name, watch in watches.items() if watch is not None}
        self.parameters = list(dict.fromkeys(p for part in self.modules for p in part.parameters() if p.requires_grad))
        rates = Scheduled(self.modules).rates()
        usual = [parameter for parameter in self.parameters if parameter not in rates]
        unfrozen = unfreezing(self.networks, usual, training, self.total, len(self.batches))
        self.scheduled = Scheduled((*self.modules, *unfrozen))
        factors = {p: f for network in self.networks for p, f in rate_factors(network, training.layer_decay).items()}
        groups = parameter_groups(self.parameters, rates, training, factors)
        adamw = torch.optim.AdamW(groups, training.learning_rate, training.betas, training.eps, fused=True)
        self.optimizer = self.accelerator.prepare_optimizer(adamw)
        self.train_state = TrainState()
        self.figures = StepFigures()
        self.best_weights: list[dict[str, torch.Tensor]] = []
        self.last_weights = LastWeights(training.average_checkpoints, folder, self.accelerator.is_main_process)

    def run(self) -> list[dict[str, Any]]:
        if self.accelerator.process_index:  # other dropout than in the first process
            torch.manual_seed(self.seed + self.accelerator.process_index)
        self._resume()
        self.log = TrainingLog(self.name, self.total, MOST_LOSSES)
        for network in self.networks:
            network.train()
        try:
            with contextlib.ExitStack() as stack:
                precision, kind = self.accelerator.mixed_precision, self.device.type
                stack.enter_context(differentiable_attention(self.networks, precision, kind))
                stack.enter_context(dropout_set(self.modules, self.training.dropout))
                for training_task in self.training_tasks:
                    stack.enter_context(kept_silent(training_task.student.model, training_task.student.tokenizer))
                self.work = stack.enter_context(under_way(self.name, self.total, self.train_state.step))
                self._steps()
                self._average()
        finally:
            back_to_float32(self.prepared)
            for network in self.networks:
                network.eval()
                for parameter in network.parameters():
                    parameter.requires_grad_(True)
        if self.folder is not None and self.train_state.best is not None and self.training.keep == "best":
            load_weights(self.folder / BEST, *self.networks)
            self.accelerator.wait_for_everyone()  # before whoever is first removes the folder
        for network, weights in zip(self.networks, self.best_weights, strict=False):
            network.load_state_dict(weights)
        for network in self.networks:
            network.cpu()
        return self.train_state.history

    def _steps(self) -> None:
        pace = CheckpointPace(self.training.checkpoint_seconds, time.perf_counter())
        for step, training_task, indices, last_of_epoch in self._schedule():
            started = time.perf_counter()
            self.scheduled.at_step(step, self.total)
            self._update(training_task, indices, step)
            self.train_state.step = done = step + 1
            self._count("seconds", time.perf_counter() - started)
            if step == 0:
                warn_if_short(self.name, self.device.type, self.accumulation.pieces)
            at_end = last_of_epoch or done == self.total or done % (self.training.report_steps or self.total) == 0
            if at_end and self._end_of_epoch():
                return
            now = time.perf_counter()
            if self._over_all(float(pace.is_due(now, at_end))):
                self._checkpoint()
                pace.written(now, time.perf_counter())

    def _schedule(self) -> Iterator[tuple[int, BoundTask, list[int], bool]]:
        """Yield (step, training task, rows, whether a scored epoch ends), from the current step to the last."""
        step, an_epoch, every = self.train_state.step, len(self.batches), self.training.score_epochs
        while step < self.total:
            self.epoch, done = divmod(step, an_epoch)
            self.batches.set_epoch(self.epoch)
            for position, (number, indices) in enumerate(self.batches):
                if position < done:
                    continue
                if step >= self.total:
                    return
                scored = position == an_epoch - 1 and (self.epoch + 1) % every == 0
                yield step, self.training_tasks[number], indices, scored
                step += 1

    def _update(self, training_task: BoundTask, indices: list[int], step: int) -> None:
        factor = rate(self.training, step, self.total)
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak"] * factor
        found, tokens = self.accumulation.backward(training_task, indices, self.epoch, progress_at(step, self.total))
        terms = dict(zip(found, torch.stack([*found.values()]).tolist(), strict=True))
        total = sum(terms.values())
        if not math.isfinite(total):
            raise DivergedError(
                f"training of {training_task.student.name} diverged: the loss of step {step + 1} of {self.total} is "
                f"{total} ({', '.join(f'{name} {value:.4g}' for name, value in terms.items())}); try a learning rate "
                f"below {self.training.learning_rate:g}, a longer warm-up, or precision fp32"
            )
        if self.training.max_grad_norm:
            self.accelerator.clip_grad_norm_(self.parameters, self.training.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        named = {f"{training_task.prefix}{name}": value for name, value in terms.items()}
        for name, value in named.items():
            self._count(f"loss.{name}", value)
        self._count(f"steps.{training_task.prefix}".rstrip("."), 1)
        self._count("tokens", tokens)
        self._keep_loss(step + 1, total)
        advance(self.work, step + 1, self.figures.after(total, tokens))
        self.log.step(step + 1, named, self.training.learning_rate * factor, tokens)

    def _count(self, name: str, value: float) -> None:
        self.train_state.sums[name] = self.train_state.sums.get(name, 0.0) + value

    def _keep_loss(self, step: int, loss: float) -> None:
        """Keep the mean loss of every so many steps."""
        state, every = self.train_state, math.ceil(self.total / MOST_LOSSES)
        state.pending += loss
        if step % every == 0:
            state.losses.append([step, float(f"{state.pending / every:.6g}")])
            state.pending = 0.0

    def _end_of_epoch(self) -> bool:
        """Score, remember the best, and tell whether training stops early."""
        sums, train_state = self.train_state.sums, self.train_state
        settled = self.scheduled.at_step(train_state.step, self.total)
        losses = {name[5:]: value for name, value in sums.items() if name.startswith("loss.")}
        steps = {one.prefix: sums.get(f"steps.{one.prefix}".rstrip("."), 0.0) for one in self.training_tasks}
        terms = {
            name: value / next(count for prefix, count in steps.items() if name.startswith(prefix))
            for name, value in losses.items()
        }
        entry: dict[str, Any] = {
            "step": train_state.step,
            "loss": sum(losses.values()) / sum(steps.values()),
            "terms": terms,
            "losses": train_state.losses,
            "seconds": sums["seconds"],
            "tokens_per_second": sums["tokens"] / max(sums["seconds"], 1e-9),
        }
        if self.accelerator.mixed_precision != "no":
            entry["precision"] = self.accelerator.mixed_precision
        train_state.sums, train_state.losses = {}, []
        with in_float32(self.prepared):
            for watch in self.watches.values():
                watch.refuse_collapse(train_state.step, self.training.learning_rate)
        if self.watches:
            self._remember_best(entry, self._scored(), settled)
            self.log.figures(train_state.step, entry)
        train_state.history.append(entry)
        if settled:
            train_state.averaged = self.last_weights.keep(train_state.step, train_state.averaged, self.networks)
        shown = [f"{name} {entry[name]:.4f}" for name in ("loss", "score", "agreement") if name in entry]
        logger.info("%s: step %d of %d, %s", self.name, train_state.step, self.total, ", ".join(shown))
        return self.training.patience is not None and train_state.stale >= self.training.patience

    def _scored(self) -> dict[str, Any]:
        """Return what the watches find; scores choose an epoch, and are of the number format of the training."""
        with in_float32(self.prepared), self.accelerator.autocast():
            return joined({name: watch.figures() for name, watch in self.watches.items()})

    def _average(self) -> None:
        """Take the mean of the last weights, and score it in the last entry of the history."""
        if len(steps := self.train_state.averaged) < 2:
            return
        self.accelerator.wait_for_everyone()  # until the first one has written the last file
        self.last_weights.load_mean(steps, self.networks)
        entry = self.train_state.history[-1]
        entry |= self._scored() if self.watches else {}
        entry["averaged"] = steps
        logger.info("%s: mean of the weights after steps %s", self.name, ", ".join(map(str, steps)))

    def _remember_best(self, entry: dict[str, Any], figures: dict[str, Any], settled: bool) -> None:
        train_state = self.train_state
        entry |= figures
        self.figures.scores = {name: figures[name] for name in ("score", "agreement") if name in figures}
        if "score" not in entry or not settled:  # vectors of texts of which nothing is known; not yet its last shape
            return
        best = -math.inf if train_state.best is None else train_state.best
        if not entry["score"] > best:  # nor where a metric could not be computed
            train_state.stale += 1
            return
        train_state.best, train_state.stale = entry["score"], 0
        if self.training.keep == "best":
            if self.folder is not None:
                if self.accelerator.is_main_process:
                    save_weights(self.folder / BEST, *self.networks)
                self.accelerator.wait_for_everyone()
            else:
                states = [network.state_dict() for network in self.networks]
                self.best_weights = [{k: tensor.detach().clone() for k, tensor in state.items()} for state in states]

    def _over_all(self, value: float) -> float:
        """Return the sum of a number over all processes."""
        if self.accelerator.num_processes == 1:
            return value
        return float(self.accelerator.reduce(torch.tensor(value, device=self.device), "sum"))

    def _checkpoint(self) -> None:
        if self.folder is None:
            return
        states = random_states()
        random = {name: self.accelerator.gather(own.to(self.device)[None]) for name, own in states.items()}
        if not self.accelerator.is_main_process:
            return
        scaler = self.accelerator.scaler  # of float16
        state = {"key": self.key, **vars(self.train_state), "loss_scale": scaler and scaler.state_dict()}
        try:
            save_checkpoint(self.folder, self.modules, self.optimizer, state, random)
        except OSError as error:
            otherwise = f"{self.folder}: the checkpoint could not be written ({error})"
            raise CompressError(full_disk(error, self.folder) or otherwise) from error

    def _resume(self) -> None:
        if self.folder is None or not (self.folder / FILE).is_file():
            return
        state = load_checkpoint(self.folder, self.modules, self.optimizer, self.accelerator.process_index)
        if state.pop("key") != self.key:
            raise UserError(
                f"{self.folder / FILE}: belongs to another run (other data, settings, seed or starting weights); "
                "remove it to train anew"
            )
        loss_scale = state.pop("loss_scale", None)
        if self.accelerator.scaler is not None and loss_scale:
            self.accelerator.scaler.load_state_dict(loss_scale)
        self.train_state = TrainState(**state)
        logger.info("%s: resuming after step %d of %d", self.name, self.train_state.step, self.total)
