"""Saying what is under way: ``whole`` for a run, ``stage`` for its stages, ``under_way`` and ``counted`` within them.

Nothing is drawn here. What is said goes to one display: to lines of the log, if nobody chooses another.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

from eval.progress.lines import Lines
from eval.progress.work import Display, Work

T = TypeVar("T")
S = TypeVar("S", bound=Sized)

LINES = Lines()
"""The display of programs that choose none."""
_display: ContextVar[Display] = ContextVar("display")
_innermost: ContextVar[Work | None] = ContextVar("innermost", default=None)


def display() -> Display:
    """Return what shows work at this moment."""
    return _display.get(LINES)


@contextmanager
def displayed(other: Display) -> Iterator[None]:
    """Show everything that is under way in this block on another display."""
    token = _display.set(other)
    try:
        yield
    finally:
        _display.reset(token)


@contextmanager
def whole(name: str, plan: Sequence[str] = (), kept_in: Path | None = None) -> Iterator[Work]:
    """Say that a run is under way.

    Args:
        name: What is made.
        plan: Names of the stages that it will have, as far as they are known.
        kept_in: Folder with what is done so far, from which the same command goes on.
    """
    with _open(Work(name, plan=tuple(plan), kept_in=kept_in)) as work:
        yield work


@contextmanager
def stage(name: str) -> Iterator[Work]:
    """Say that a stage of what is under way begins; stages may have stages."""
    with _open(Work(name, is_stage=True)) as work:
        yield work


def passed(name: str, remark: str) -> None:
    """Say that a stage has nothing to do, and why, such as ``already there``."""
    with _open(Work(name, is_stage=True, remark=remark)):
        pass


@contextmanager
def under_way(name: str, total: int = 0, done: int = 0, kept_in: Path | None = None) -> Iterator[Work]:
    """Say that something is under way that is no stage; ``advance`` then tells how far it is.

    Args:
        name: What is done.
        total: How much there is to do; 0 where nothing is counted.
        done: How much of it was done before.
        kept_in: As for ``whole``.
    """
    with _open(Work(name, total, done, kept_in=kept_in)) as work:
        yield work


def advance(work: Work, done: int, figures: str = "") -> None:
    """Say that so much is done, and what else is worth knowing now."""
    work.done, work.figures = done, figures
    display().advance(work)


def counted(items: Iterable[S], name: str, total: int) -> Iterator[S]:
    """Yield batches, and say how many of their ``total`` items are done; each counts once the next is asked for."""
    with under_way(name, total) as work:
        for batch in items:
            yield batch
            advance(work, work.done + len(batch))


def one_by_one(items: Sequence[T], name: str) -> Iterator[T]:
    """Yield items, and say how many are done; each counts once the next is asked for."""
    with under_way(name, len(items)) as work:
        for number, item in enumerate(items, start=1):
            yield item
            advance(work, number)


@contextmanager
def _open(work: Work) -> Iterator[Work]:
    shown, outer = display(), _innermost.get()
    work.outer = outer
    if outer is not None:
        outer.inner = work
        if work.is_stage:
            outer.stages.append(work)
    token: Any = _innermost.set(work)
    shown.begin(work)
    try:
        yield work
    except BaseException:
        work.failed = True
        raise
    finally:
        work.ended = time.perf_counter()
        _innermost.reset(token)
        if outer is not None:
            outer.inner = None
        shown.end(work)
