"""Progress as plain lines of the log, for files, pipes and programs of one's own."""

from __future__ import annotations

import logging
import time

from eval.progress.work import Work, clock

logger = logging.getLogger("eval.progress")

EVERY_SECONDS = 30.0
"""Time between two lines about the same work."""


class Lines:
    """Logs a line when a stage begins or ends, and one now and then about what is counted.

    Args:
        every_seconds: Time without a line after which the next step of a count is told.
    """

    def __init__(self, every_seconds: float = EVERY_SECONDS) -> None:
        self.every = every_seconds
        self.said = time.perf_counter()

    def begin(self, work: Work) -> None:
        """Say that a stage begins."""
        if work.outer is None:
            self.said = time.perf_counter()
        if work.is_stage and not work.remark:
            self._say(f"{_place(work)}: started")

    def advance(self, work: Work) -> None:
        """Say how far something is, if nothing was said for a while."""
        if time.perf_counter() - self.said < self.every:
            return
        left = "" if work.seconds_left is None else f"{clock(work.seconds_left)} left"
        count = f"{work.done:,}/{work.total:,}" if work.total else ""
        self._say(f"{work.name}: {'  '.join(filter(None, [count, work.figures, left]))}")

    def end(self, work: Work) -> None:
        """Say that a stage is done, and how long it took; how one failed is said by its error."""
        if work.is_stage and not work.failed:
            self._say(f"{_place(work)}: {work.remark or f'done in {work.seconds:.1f} s'}")

    def _say(self, line: str) -> None:
        self.said = time.perf_counter()
        logger.info("%s", line)


def _place(stage: Work) -> str:
    """Return the names of a stage and of the stages around it."""
    names, outer = [stage.name], stage.outer
    while outer is not None:
        names += [outer.name] if outer.is_stage else []
        outer = outer.outer
    return ": ".join(reversed(names))
