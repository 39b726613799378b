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
from torch import nn

from eval.errors import CompressError, DivergedError, UserError
from eval.task import Examples
from teachers.batches import MixedBatches, cut
from teachers.checkpoint import BEST, FILE, load_checkpoint, load_weights, random_states, save_checkpoint, save_weights
from teachers.config import Training
from teachers.features import Batch
from teachers.freezing import freeze, unfreezing
from teachers.layer_groups import rate_factors
from teachers.learning_rate import rate
from teachers.lessons import Bound, Learnable, Lesson
from teachers.objective import Objective, TaskLoss
from teachers.observing import observe, observed
from teachers.padding import kept_silent
from teachers.precision import back_to_float32, in_float32, mixed_precision
from teachers.progress import Progress
from teachers.scheduled import Scheduled, parameter_groups
from teachers.signals import TeacherSource
from teachers.taskmodel import TaskModel, weights_digest
from teachers.watching import joined

logger = logging.getLogger("teachers.training")


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
        DivergedError: If the loss is not finite, or the student collapses (see ``teachers.watching``).
    """
    lesson = Lesson(student, examples, objective or TaskLoss(), validation, teacher)
    return learn([lesson], training, seed=seed, folder=folder, identity=identity)


def learn(
    lessons: Sequence[Learnable],
    training: Training | None = None,
    *,
    seed: int = 13,
    folder: Path | None = None,
    identity: str = "",
) -> list[dict[str, Any]]:
    """Train on one lesson or on several, whose students may share parts; see ``train`` for what is not said here."""
    training = training or Training()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        bound = [lesson.bind(seed) for lesson in lessons]
        digests = [word for one in bound for word in (one.rows.digest, weights_digest(one.student.model))]
        words = [training.model_dump_json(), str(seed), *digests, identity]
        return _Loop(bound, training, seed, folder, hashlib.sha256("|".join(words).encode()).hexdigest()).run()


class _Loop:
    def __init__(self, lessons: list[Bound], training: Training, seed: int, folder: Path | None, key: str) -> None:
        self.lessons, self.training, self.seed, self.folder, self.key = lessons, training, seed, folder, key
        self.networks = [lesson.student.model for lesson in lessons]
        self.name = " and ".join(dict.fromkeys(lesson.student.name for lesson in lessons))
        self.batches = MixedBatches([lesson.batches(training, seed) for lesson in lessons], seed)
        self.total = max(1, math.ceil(training.epochs * len(self.batches)))
        if training.max_steps is not None:
            self.total = min(self.total, training.max_steps)
        self.accelerator = _accelerator(training.precision)
        self.device = self.accelerator.device
        if len({id(network) for network in self.networks}) > 1 and self.accelerator.num_processes > 1:
            raise UserError("several networks are trained together by one process; start it without torchrun")
        self.modules = tuple(
            module.to(self.device) for module in (*self.networks, *(one.loss.modules for one in lessons))
        )
        run = [observed(lesson.student.model, lesson.loss.reads) for lesson in lessons]
        self.prepared = list({id(part): part for part in run}.values())
        wrapped = {id(part): self.accelerator.prepare_model(part) for part in self.prepared}
        self.calls = {id(lesson): wrapped[id(part)] for lesson, part in zip(lessons, run, strict=True)}
        for lesson in lessons:
            freeze(lesson.student.model, training)
        with in_float32(self.prepared):
            self.watches = {lesson.name: watch for lesson in lessons if (watch := lesson.watch()) is not None}
        trained = (p for module in self.modules for p in module.parameters() if p.requires_grad)
        self.parameters = list(dict.fromkeys(trained))
        rates = Scheduled(self.modules).rates()
        usual = [parameter for parameter in self.parameters if parameter not in rates]
        unfrozen = unfreezing(self.networks, usual, training, self.total, len(self.batches))
        self.scheduled = Scheduled((*self.modules, *unfrozen))
        factors = {p: f for network in self.networks for p, f in rate_factors(network, training.layer_decay).items()}
        groups = parameter_groups(self.parameters, rates, training, factors)
        self.optimizer = self.accelerator.prepare_optimizer(_optimizer(groups, training))
        self.course = Course()
        self.best_weights: list[dict[str, torch.Tensor]] = []

    def run(self) -> list[dict[str, Any]]:
        if self.accelerator.process_index:  # other dropout than in the first process
            torch.manual_seed(self.seed + self.accelerator.process_index)
        self._resume()
        for network in self.networks:
            network.train()
        try:
            with contextlib.ExitStack() as stack:
                for lesson in self.lessons:
                    stack.enter_context(kept_silent(lesson.student.model, lesson.student.tokenizer))
                self.progress = stack.enter_context(Progress(self.total, self.course.step, self.name))
                self._steps()
        finally:
            back_to_float32(self.prepared)
            for network in self.networks:
                network.eval()
                for parameter in network.parameters():
                    parameter.requires_grad_(True)
        if self.folder is not None and self.course.best is not None and self.training.keep == "best":
            load_weights(self.folder / BEST, *self.networks)
            self.accelerator.wait_for_everyone()  # before whoever is first removes the folder
        for network, weights in zip(self.networks, self.best_weights, strict=False):
            network.load_state_dict(weights)
        for network in self.networks:
            network.cpu()
        return self.course.history

    def _steps(self) -> None:
        saved = time.perf_counter()
        for step, lesson, indices, last_of_epoch in self._schedule():
            started = time.perf_counter()
            self.scheduled.at_step(step, self.total)
            self._update(lesson, indices, step)
            self.course.step = step + 1
            self._count("seconds", time.perf_counter() - started)
            every = self.training.report_steps
            if last_of_epoch or self.course.step == self.total or (every and self.course.step % every == 0):
                if self._end_of_epoch():
                    return
                self._checkpoint()
                saved = time.perf_counter()
            elif self._over_all(float(time.perf_counter() - saved >= self.training.checkpoint_seconds)):
                self._checkpoint()
                saved = time.perf_counter()

    def _schedule(self) -> Iterator[tuple[int, Bound, list[int], bool]]:
        """Yield (step, lesson, rows, whether the epoch ends), from where the course stands to the last update."""
        an_epoch = len(self.batches)
        step = self.course.step
        while step < self.total:
            self.epoch, done = divmod(step, an_epoch)
            self.batches.set_epoch(self.epoch)
            for position, (number, indices) in enumerate(self.batches):
                if position < done:
                    continue
                if step >= self.total:
                    return
                yield step, self.lessons[number], indices, position == an_epoch - 1
                step += 1

    def _update(self, lesson: Bound, indices: list[int], step: int) -> None:
        own, weight = self._own(lesson, indices)
        parts = [part for part in cut(own, self.training.accumulation, lesson.groups) if part]
        pieces = [lesson.rows.batch(part, self.epoch, progress=step / self.total).to(self.device) for part in parts]
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak"] * rate(self.training, step, self.total)
        sums: dict[str, torch.Tensor] = {}
        for number, (piece, shares) in enumerate(zip(pieces, self._shares(lesson, pieces, weight), strict=True)):
            last = number == len(pieces) - 1
            with contextlib.nullcontext() if last else self.accelerator.no_sync(self.calls[id(lesson)]):
                for name, value in self._backward(lesson, piece, shares).items():
                    sums[name] = sums.get(name, 0.0) + value
        terms = dict(zip(sums, self.accelerator.reduce(torch.stack([*sums.values()]), "mean").tolist(), strict=True))
        self._share_gradients(lesson.loss.modules)
        total = sum(terms.values())
        if not math.isfinite(total):
            raise DivergedError(
                f"training of {lesson.student.name} diverged: the loss of update {step + 1} of {self.total} is {total} "
                f"({', '.join(f'{name} {value:.4g}' for name, value in terms.items())}); try a learning rate below "
                f"{self.training.learning_rate:g}, a longer warm-up, or precision fp32"
            )
        if self.training.max_grad_norm:
            self.accelerator.clip_grad_norm_(self.parameters, self.training.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        tokens = round(self._over_all(sum(float(piece.mask.sum()) for piece in pieces) if weight else 0.0))
        for name, value in terms.items():
            self._count(f"loss.{lesson.prefix}{name}", value)
        self._count(f"steps.{lesson.prefix}".rstrip("."), 1)
        self._count("tokens", tokens)
        self.progress.update(step + 1, total, tokens)

    def _own(self, lesson: Bound, indices: list[int]) -> tuple[list[int], float]:
        """Return this process's rows and what its means weigh, so that the mean over processes is that of all rows.

        A process without rows repeats one that weighs nothing, for gradients are exchanged by all.
        """
        processes = self.accelerator.num_processes
        own = cut(indices, processes, lesson.groups)[self.accelerator.process_index]
        return own or indices[:1], len(own) * processes / len(indices)

    def _shares(self, lesson: Bound, pieces: Sequence[Batch], weight: float) -> list[dict[str, float]]:
        """Return what the mean of each term over a piece is multiplied by, so that sums are means over the batch."""
        rows = [{"": weight * len(piece) / sum(map(len, pieces))} for piece in pieces]
        counts = getattr(lesson.loss, "counts", None)
        several = self.accelerator.num_processes
        if counts is None or (several == 1 and len(pieces) == 1):
            return rows
        found = [counts(piece) for piece in pieces]
        if not found[0]:
            return rows
        answers = torch.tensor([[float(value) for value in one.values()] for one in found], device=self.device)
        answers = answers if weight else torch.zeros_like(answers)
        total = self.accelerator.reduce(answers.sum(dim=0), "sum").clamp(min=1e-9)
        shares = (answers * several / total).tolist()
        return [one | dict(zip(found[0], share, strict=True)) for one, share in zip(rows, shares, strict=True)]

    def _backward(self, lesson: Bound, piece: Batch, shares: dict[str, float]) -> dict[str, torch.Tensor]:
        with self.accelerator.autocast():
            piece = lesson.prepare(piece)
            signals = observe(lesson.student.model, piece.inputs, lesson.loss.reads, call=self.calls[id(lesson)])
            losses = lesson.loss(signals, piece)
            terms = {name: value * shares.get(name, shares[""]) for name, value in losses.items()}
        if not any(value.requires_grad for value in terms.values()):
            raise UserError(
                f"training of {lesson.student.name}: nothing that the loss reads is trained; freeze less, or leave out "
                "unfreeze, which begins with the head"
            )
        self.accelerator.backward(sum(terms.values()))
        return {name: value.detach().float() for name, value in terms.items()}

    def _share_gradients(self, modules: nn.Module) -> None:
        """Average the gradients of what is trained beside the student, which nothing else does between processes."""
        parameters = [parameter for parameter in modules.parameters() if parameter.requires_grad]
        if self.accelerator.num_processes == 1 or not parameters:
            return
        own = torch.tensor([float(one.grad is not None) for one in parameters], device=self.device)
        for parameter, used in zip(parameters, self.accelerator.reduce(own, "sum").tolist(), strict=True):
            if used:  # by one process at the least; to the others the batch may have given nothing to answer
                gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                parameter.grad = self.accelerator.reduce(gradient, "mean")

    def _count(self, name: str, value: float) -> None:
        self.course.sums[name] = self.course.sums.get(name, 0.0) + value

    def _end_of_epoch(self) -> bool:
        """Score, remember the best, and tell whether training stops early."""
        sums, course = self.course.sums, self.course
        settled = self.scheduled.at_step(course.step, self.total)
        losses = {name[5:]: value for name, value in sums.items() if name.startswith("loss.")}
        steps = {one.prefix: sums.get(f"steps.{one.prefix}".rstrip("."), 0.0) for one in self.lessons}
        terms = {
            name: value / next(count for prefix, count in steps.items() if name.startswith(prefix))
            for name, value in losses.items()
        }
        entry: dict[str, Any] = {
            "step": course.step,
            "loss": sum(losses.values()) / sum(steps.values()),
            "terms": terms,
            "seconds": sums["seconds"],
            "tokens_per_second": sums["tokens"] / max(sums["seconds"], 1e-9),
        }
        course.sums = {}
        with in_float32(self.prepared):
            for watch in self.watches.values():
                watch.refuse_collapse(course.step, self.training.learning_rate)
            figures = {name: watch.figures() for name, watch in self.watches.items()}
        if figures:
            self._remember_best(entry, joined(figures), settled)
        course.history.append(entry)
        shown = [f"{name} {entry[name]:.4f}" for name in ("loss", "score", "agreement") if name in entry]
        logger.info("%s: update %d of %d, %s", self.name, course.step, self.total, ", ".join(shown))
        return self.training.patience is not None and course.stale >= self.training.patience

    def _remember_best(self, entry: dict[str, Any], figures: dict[str, Any], settled: bool) -> None:
        course = self.course
        entry |= figures
        self.progress.figures = {name: figures[name] for name in ("score", "agreement") if name in figures}
        if "score" not in entry or not settled:  # vectors of texts of which nothing is known; not yet its last shape
            return
        if course.best is not None and entry["score"] <= course.best:
            course.stale += 1
            return
        course.best, course.stale = entry["score"], 0
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
        state = {"key": self.key, **vars(self.course)}
        try:
            save_checkpoint(self.folder, self.modules, self.optimizer, state, random)
        except OSError as error:
            raise CompressError(f"{self.folder}: the checkpoint could not be written ({error})") from error

    def _resume(self) -> None:
        if self.folder is None or not (self.folder / FILE).is_file():
            return
        state = load_checkpoint(self.folder, self.modules, self.optimizer, self.accelerator.process_index)
        if state.pop("key") != self.key:
            raise UserError(
                f"{self.folder / FILE}: belongs to another run (other data, settings, seed or starting weights); "
                "remove it to train anew"
            )
        self.course = Course(**state)
        logger.info("%s: going on after update %d of %d", self.name, self.course.step, self.total)


def _optimizer(groups: list[dict[str, Any]], training: Training) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        groups,
        lr=training.learning_rate,
        betas=training.betas,
        eps=training.eps,
        fused=True,
    )


def _accelerator(precision: str) -> Any:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import DistributedDataParallelKwargs

    AcceleratorState._reset_state()
    return Accelerator(
        cpu=not torch.cuda.is_available(),
        mixed_precision=mixed_precision(precision),
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
    )
