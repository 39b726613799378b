"""What trainings send to trackers (TensorBoard, MLflow, W&B, …), which accelerate knows by name.

A tracker is no hyperparameter: weights are the same with and without one, bit for bit, and no digest contains it. One
that fails is left out, and the training goes on.
"""

from __future__ import annotations

import contextlib
import logging
import math
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from eval.errors import UserError, did_you_mean
from eval.one_line import first_line
from teachers.training.processes import accelerator

logger = logging.getLogger("teachers.training.tracking")

STRANGE = re.compile(r"[^\w .:/-]", re.ASCII)
"""What no name of a figure may hold: MLflow is the strictest."""


def tracker_problems(names: Sequence[str]) -> list[str]:
    """Return a sentence for each tracker that accelerate does not know, or whose package is not installed."""
    if not names:
        return []
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers
    from accelerate.utils import LoggerType

    installed = {str(name) for name in get_available_trackers()}
    absent = set(LoggerType.list()) - installed  # what a program registered itself is not in that list
    problems = []
    for name in names:
        if name not in LOGGER_TYPE_TO_CLASS:
            problems.append(f"track: unknown tracker {name!r}{did_you_mean(name, LOGGER_TYPE_TO_CLASS)}")
        elif name in absent:
            problems.append(f"track: {name} is not installed; run: pip install {name}")
    return problems


@contextlib.contextmanager
def track_with(
    names: Sequence[str], project: str, folder: str | Path, config: Mapping[str, Any] | None = None
) -> Iterator[None]:
    """Send the losses, rates, speeds and scores of all trainings meanwhile to trackers, as one run of theirs.

    Args:
        names: As accelerate calls them, such as ``tensorboard``; none sends nothing.
        project: What the trackers call the project or experiment.
        folder: Where trackers that write files write them.
        config: What the run was asked for; nested values get names such as ``steps.0.prune.layers.keep.0``.

    Raises:
        UserError: If a tracker is unknown or not installed.
    """
    if problems := tracker_problems(names):
        raise UserError(*problems)
    trackers = _Trackers(project, Path(folder), dict(_flat(config or {}))) if names else None
    token = _place.set(None if trackers is None else _Place(trackers))
    try:
        if trackers is not None:
            trackers.start(dict.fromkeys(names))
        yield
    finally:
        _place.reset(token)
        if trackers is not None:
            trackers.finish()


@contextlib.contextmanager
def tracked_as(name: str) -> Iterator[None]:
    """Put whatever is sent meanwhile under a name, and this under the names around it."""
    place = _place.get()
    token = _place.set(None if place is None else replace(place, names=(*place.names, name)))
    try:
        yield
    finally:
        _place.reset(token)


@contextlib.contextmanager
def untracked() -> Iterator[None]:
    """Send nothing meanwhile."""
    token = _place.set(None)
    try:
        yield
    finally:
        _place.reset(token)


def track(values: Mapping[str, float]) -> None:
    """Send figures to the trackers, if there are any, at the last step that they know."""
    place = _place.get()
    if place is not None:
        place.trackers.log(place.names, values, place.trackers.last)


class TrainingLog:
    """The curves of one training; it sends nothing where there are no trackers.

    Args:
        name: What they stand under, unless ``tracked_as`` says it.
        total: Optimizer steps of the training.
        most: Points of a curve, so that a slow server does not slow the training down: each is a mean of its steps.
    """

    def __init__(self, name: str, total: int, most: int) -> None:
        self.place = _place.get()
        if self.place is None:
            return
        self.names = self.place.names or (name,)
        self.before = self.place.trackers.last  # trackers want steps that never fall, of all trainings of a run
        self.total, self.every = total, math.ceil(total / most)
        self.seen: dict[str, list[float]] = defaultdict(list)
        self.tokens, self.since = 0, time.perf_counter()

    def step(self, step: int, terms: Mapping[str, float], learning_rate: float, tokens: int) -> None:
        """Tell of an optimizer step.

        Args:
            step: How many there were.
            terms: What its loss consists of.
            learning_rate: Its rate, before factors of layers.
            tokens: Real tokens that it saw.
        """
        if self.place is None:
            return
        for name, value in {"loss": sum(terms.values()), **{f"loss.{name}": x for name, x in terms.items()}}.items():
            self.seen[name].append(value)
        self.tokens += tokens
        if step % self.every and step != self.total:
            return
        now = time.perf_counter()
        means = {name: fmean(values) for name, values in self.seen.items()}
        speed = {"learning_rate": learning_rate, "tokens_per_second": self.tokens / max(now - self.since, 1e-9)}
        self.place.trackers.log(self.names, means | speed, self.before + step)
        self.seen.clear()
        self.tokens, self.since = 0, now

    def figures(self, step: int, figures: Mapping[str, Any]) -> None:
        """Tell what the examples that choose showed after so many steps: ``score`` and ``agreement``, if they are."""
        if self.place is None:
            return
        known = {name: figures[name] for name in ("score", "agreement") if name in figures}
        if known:
            self.place.trackers.log(self.names, known, self.before + step)


class _Trackers:
    """Trackers that are open, each in an accelerator of its own, so that one that fails takes no other with it."""

    def __init__(self, project: str, folder: Path, config: dict[str, Any]) -> None:
        self.project, self.folder, self.config = project, folder, config
        self.open: dict[str, Any] = {}
        self.last = 0

    def start(self, names: Iterable[str]) -> None:
        for name in names:
            opened = accelerator(log_with=name, project_dir=str(self.folder))
            if opened.is_main_process:
                self.open[name] = opened
                self._call(name, partial(opened.init_trackers, self.project, self.config))
        if self.open:
            logger.info("tracked by %s; what is written as files is in %s", ", ".join(self.open), self.folder)

    def log(self, names: Sequence[str], values: Mapping[str, float], step: int) -> None:
        self.last = step
        named = {STRANGE.sub("_", "/".join((*names, name))): value for name, value in values.items()}
        for name, opened in list(self.open.items()):
            self._call(name, partial(opened.log, named, step=step))

    def finish(self) -> None:
        for name, opened in list(self.open.items()):
            for tracker in opened.trackers:
                self._call(name, tracker.finish)

    def _call(self, name: str, call: Callable[[], Any]) -> None:
        """Call a tracker; whatever it draws changes no training, and whatever it raises ends its part alone."""
        try:
            with torch.random.fork_rng(devices=[]):
                call()
        except Exception as error:  # every tracker has its own kinds
            self.open.pop(name, None)
            logger.warning("tracker %s failed, so the run goes on without it: %s", name, first_line(error))


@dataclass(frozen=True)
class _Place:
    """Where figures go: to these trackers, under these names."""

    trackers: _Trackers
    names: tuple[str, ...] = ()


_place: ContextVar[_Place | None] = ContextVar("place", default=None)


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield plain values with their dotted names, as after ``--set``; trackers take no others."""
    parts = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else None
    if parts is None:
        yield name, value
        return
    for key, part in parts:
        yield from _flat(part, f"{name}.{key}".lstrip("."))
