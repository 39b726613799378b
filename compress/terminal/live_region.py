"""The one live region of a command in a terminal: the stages of a run, and a bar for what is counted.

Log lines, warnings and whatever else goes to standard error are printed above it. There is no thread: the region is
drawn when something changes, a few times a second at most, so that nothing runs beside what is timed.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from eval.progress.work import Work, clock

SECONDS = 0.2
"""Least time between two drawings of a count."""
MARKS = {"done": ("✓", "green"), "failed": ("✗", "red"), "under way": ("▸", "bold cyan"), "to come": ("·", "dim")}
PLAIN_MARKS = {"done": "+", "failed": "x", "under way": ">", "to come": "."}
"""Marks for terminals whose encoding has no others."""
FEWEST = 5
"""Stages that are listed even in a low window; of the others only their number is told."""


class LiveRegion:
    """Draws what is under way at the bottom of a terminal.

    Args:
        console: The terminal; standard error by default.

    Attributes:
        head: What is shown above the stages, such as a table of candidates.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self.head: RenderableType | None = None
        self.root: Work | None = None
        self.live: Live | None = None
        self.drawn = 0.0

    def begin(self, work: Work) -> None:
        """Show something that begins; the first thing opens the region."""
        if self.root is None:
            self.root = work
            self.live = Live(
                console=self.console,
                auto_refresh=False,
                get_renderable=self._drawing,
                redirect_stdout=sys.stdout.isatty(),  # else results would go where progress goes
            )
            self.live.start()
        self._draw(now=work.is_stage)

    def advance(self, work: Work) -> None:
        """Show how far something is."""
        del work
        self._draw()

    def end(self, work: Work) -> None:
        """Show that something has ended; the end of the first thing closes the region and leaves its stages."""
        if work is self.root and self.live is not None:
            self.head = None
            self.live.transient = not work.stages
            self.live.stop()
            self.live = self.root = None
        else:
            self._draw(now=work.is_stage)

    def show_above(self, head: RenderableType) -> None:
        """Show something above the stages."""
        self.head = head
        self._draw()

    def _draw(self, now: bool = False) -> None:
        if self.live is not None and (now or time.perf_counter() - self.drawn >= SECONDS):
            self.live.refresh()
            self.drawn = time.perf_counter()

    def _drawing(self) -> RenderableType:
        if self.root is None:
            return ""
        rows = [] if self.root.is_stage or self.root.total else [Text(self.root.name, "bold")]
        return Group(*([self.head] if self.head is not None else []), *rows, *self._inside(self.root))

    def _inside(self, work: Work, depth: int = 0) -> list[RenderableType]:
        """Return the lines of the stages of something, and of what is under way in it."""
        rows: list[RenderableType] = []
        if work.total and work.ended is None:
            rows.append(_bar(work, depth))
        open_stage = work.inner if work.inner is not None and work.inner.is_stage else None
        ended = [self._line(stage, depth) for stage in work.stages if stage is not open_stage]
        to_come = [self._marked("to come", Text(name, "dim"), depth) for name in work.to_come]
        room = max(FEWEST, self.console.height // 2)
        spare = max(0, room - min(len(to_come), room // 2) - 1)
        rows += _last(ended, spare, depth)
        if open_stage is not None:
            rows += [self._line(open_stage, depth), *self._inside(open_stage, depth + 1)]
        elif work.inner is not None:
            if not work.inner.total:
                rows.append(Text("  " * depth + work.inner.name, overflow="ellipsis", no_wrap=True))
            rows += self._inside(work.inner, depth if work.inner.total else depth + 1)
        return rows + _first(to_come, room // 2, depth)

    def _line(self, stage: Work, depth: int) -> RenderableType:
        if stage.ended is None:
            return self._marked("under way", Text(stage.name, "bold"), depth)
        told = stage.remark or ("" if stage.failed else clock(stage.seconds))
        return self._marked("failed" if stage.failed else "done", Text.assemble(stage.name, "  ", (told, "dim")), depth)

    def _marked(self, state: str, text: Text, depth: int) -> RenderableType:
        mark, style = MARKS[state]
        if not _has(self.console, mark):
            mark = PLAIN_MARKS[state]
        line = Text.assemble("  " * depth, (mark, style), " ", text)
        line.no_wrap, line.overflow = True, "ellipsis"
        return line


def _bar(work: Work, depth: int) -> RenderableType:
    """Return a bar with the name, the count and the time left; a second line has the figures."""
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(no_wrap=True, overflow="ellipsis", max_width=34)
    grid.add_column(ratio=1, min_width=8)
    grid.add_column(no_wrap=True)
    left = "" if work.seconds_left is None else f"  {clock(work.seconds_left)} left"
    bar: Any = ProgressBar(total=work.total, completed=min(work.done, work.total))
    grid.add_row(Text("  " * depth + work.name), bar, Text(f"{work.done:,}/{work.total:,}{left}"))
    if not work.figures:
        return grid
    figures = Text("  " * depth + work.figures, "dim", overflow="ellipsis", no_wrap=True)
    return Group(grid, figures)


def _last(rows: list[RenderableType], most: int, depth: int) -> list[RenderableType]:
    hidden = len(rows) - most
    return rows if hidden <= 0 else [_hidden(f"{hidden} done", depth), *rows[hidden:]]


def _first(rows: list[RenderableType], most: int, depth: int) -> list[RenderableType]:
    hidden = len(rows) - most
    return rows if hidden <= 0 else [*rows[:most], _hidden(f"{hidden} to come", depth)]


def _hidden(words: str, depth: int) -> Text:
    return Text("  " * depth + f"… {words}", "dim")


def _has(console: Console, mark: str) -> bool:
    try:
        mark.encode(console.encoding)
    except UnicodeEncodeError:
        return False
    return True
