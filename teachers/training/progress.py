"""Progress of a training: a bar on a terminal, a log line now and then elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from types import TracebackType
from typing import Any

from teachers.training.processes import is_first

logger = logging.getLogger("teachers.training.loop")


class Progress:
    """Shows steps, loss, tokens a second, time left and the last score and agreement, on standard error.

    Args:
        total: Updates of the whole training.
        done: Updates made before it was resumed.
        label: What is trained.
        every_seconds: Time between log lines where there is no terminal.
    """

    def __init__(self, total: int, done: int = 0, label: str = "training", every_seconds: float = 30.0) -> None:
        self.total, self.first, self.label, self.every = total, done, label, every_seconds
        self.started = self.logged = time.perf_counter()
        self.tokens = 0
        self.figures: dict[str, float] = {}
        self.bar: Any = None

    def __enter__(self) -> Progress:
        if sys.stderr.isatty() and is_first():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as RichProgress

            self.bar = RichProgress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.completed}/{task.total}  {task.fields[figures]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self.bar.start()
            self.task = self.bar.add_task(self.label, total=self.total, completed=self.first, figures="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def update(self, step: int, loss: float, tokens: int) -> None:
        """Tell that ``step`` updates are done, the last with this loss over this many real tokens."""
        self.tokens += tokens
        now = time.perf_counter()
        speed = self.tokens / max(now - self.started, 1e-9)
        figures = f"loss {loss:.4f}  {speed:,.0f} tokens/s"
        figures += "".join(f"  {name} {value:.4f}" for name, value in self.figures.items())
        if self.bar is not None:
            self.bar.update(self.task, completed=step, figures=figures)
        elif now - self.logged >= self.every:
            self.logged = now
            left = (self.total - step) * (now - self.started) / max(step - self.first, 1)
            logger.info("%s: %d/%d  %s  %s left", self.label, step, self.total, figures, clock(left))


def clock(seconds: float) -> str:
    """Return seconds as ``h:mm:ss``."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
