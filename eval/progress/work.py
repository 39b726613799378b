"""Something that takes a while, and what may show how far it is."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(eq=False)
class Work:
    """Something under way.

    Attributes:
        name: What is done.
        total: How much there is to do; 0 where nothing is counted.
        done: How much of it is done.
        plan: Names of its stages that are known beforehand, in their order.
        kept_in: Folder with what is done so far, from which the same command goes on.
        is_stage: Whether it is one of the stages of ``outer``.
        outer: What it is a part of.
        figures: What is worth knowing at this moment, such as the loss.
        stages: Its stages that have begun.
        inner: What is under way within it.
        started: Seconds by ``time.perf_counter``.
        ended: Likewise; None while it is under way.
        failed: Whether an error or Ctrl-C ended it.
        remark: What a stage that has ended says in the place of its time.
    """

    name: str
    total: int = 0
    done: int = 0
    plan: tuple[str, ...] = ()
    kept_in: Path | None = None
    is_stage: bool = False
    outer: Work | None = None
    figures: str = ""
    stages: list[Work] = field(default_factory=list)
    inner: Work | None = None
    started: float = field(default_factory=lambda: time.perf_counter())
    ended: float | None = None
    failed: bool = False
    remark: str = ""

    def __post_init__(self) -> None:
        self.first = self.done

    @property
    def seconds(self) -> float:
        """How long it has taken so far, or took in all."""
        return (time.perf_counter() if self.ended is None else self.ended) - self.started

    @property
    def seconds_left(self) -> float | None:
        """How long it will go on at the speed that it had so far; None before anything is known."""
        made = self.done - self.first
        return self.seconds * (self.total - self.done) / made if made > 0 and self.total else None

    @property
    def to_come(self) -> list[str]:
        """The names of the plan that have not begun, each as often as it stands there."""
        left = list(self.plan)
        for stage in self.stages:
            if stage.name in left:
                left.remove(stage.name)
        return left


class Display(Protocol):
    """Shows work. It is told of everything, and decides by itself what is worth a line."""

    def begin(self, work: Work) -> None:
        """Take note that something begins."""
        ...

    def advance(self, work: Work) -> None:
        """Take note that ``done`` or ``figures`` of something changed."""
        ...

    def end(self, work: Work) -> None:
        """Take note that something has ended."""
        ...


def clock(seconds: float) -> str:
    """Return seconds as ``h:mm:ss``.

    Example:
        >>> clock(3725.4)
        '1:02:05'
    """
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
