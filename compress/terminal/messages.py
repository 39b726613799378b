"""What a command says while it works: log lines on standard error, and how far it is."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from eval.errors import shortened
from eval.progress.lines import Lines
from eval.progress.stages import display, displayed
from teachers.training.processes import is_first

if TYPE_CHECKING:
    from compress.terminal.live_region import LiveRegion
    from eval.progress.work import Display, Work

LOGGERS = ("compress", "teachers", "eval")
LONG = (
    *("run", "optimize", "distill", "search", "teach", "augment", "export", "eval"),
    *("certify", "recheck", "push", "demo"),
)
"""Commands that tell what they are doing; the others only warn."""


class Following:
    """Passes on what is under way to a display, and remembers the folder from which a stopped command goes on.

    Attributes:
        display: What shows it.
        kept_in: The folder; None if nothing is kept.
    """

    def __init__(self, display: Display) -> None:
        self.display = display
        self.kept_in: Path | None = None

    def begin(self, work: Work) -> None:
        """Take note of what begins."""
        self.kept_in = self.kept_in or work.kept_in
        self.display.begin(work)

    def advance(self, work: Work) -> None:
        """Pass it on."""
        self.display.advance(work)

    def end(self, work: Work) -> None:
        """Pass it on."""
        self.display.end(work)


@contextmanager
def following(command: str) -> Iterator[Following]:
    """Show messages and progress of a command: a live region in a terminal, else lines; both on standard error.

    Args:
        command: Its name.
    """
    handler = _Messages(logging.INFO if command in LONG else logging.WARNING)
    follow = Following(_display(command))
    try:
        if is_first():
            handler.attach()
        with displayed(follow):
            yield follow
    finally:
        handler.detach()


def _display(command: str) -> Display:
    if command not in LONG or not is_first() or not sys.stderr.isatty():
        return Lines()
    from compress.terminal.live_region import LiveRegion

    region = LiveRegion()
    return region if region.console.is_interactive else Lines()  # not where TERM is dumb


class _Messages(logging.Handler):
    """Sends what the toolkit logs to standard error while a command runs."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(f"{shortened(self.format(record))}\n")  # not by click, which goes around the live region
        sys.stderr.flush()

    def attach(self) -> None:
        for name in LOGGERS:
            logger = logging.getLogger(name)
            logger.addHandler(self)
            logger.setLevel(logging.INFO)

    def detach(self) -> None:
        for name in LOGGERS:
            logger = logging.getLogger(name)
            logger.removeHandler(self)
            logger.setLevel(logging.NOTSET)


def live_region() -> LiveRegion | None:
    """Return the live region of the command that runs; None where there is no terminal."""
    from compress.terminal.live_region import LiveRegion

    shown = display()
    return shown.display if isinstance(shown, Following) and isinstance(shown.display, LiveRegion) else None
