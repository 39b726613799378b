"""A forked command with a clock that stands still, killed at a chosen change to the disk, or refused it by a full disk.

Python says every change to the disk to an *audit hook* before it makes it. So a command can be ended between any two of
them, which a timer would hardly ever hit, and what it wrote can be compared bit for bit, as no time stands in it.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

TAKES_SPACE = frozenset({"open", "os.mkdir", "os.rename"})
CHANGES = TAKES_SPACE | {"os.remove", "os.rmdir", "os.chmod", "exchange"}
UNNAMED = getattr(os, "O_TMPFILE", -1)
"""Opens a file without a name, as file locks do: it is gone when it is closed, or the process killed."""
TICK = 2.0**-40
"""Seconds between two looks at the clock: sums of it are exact, and it is nothing once rounded."""


@dataclass(frozen=True)
class Interruption:
    """What happens to a command at its changes to the disk below its working folder.

    Attributes:
        at: The number of the change at which it happens, counted from 1; 0 lets the command end by itself.
        full: Whether the disk is full from there on; else the process is killed before it makes the change.
        log: Gets a line for each change, its kind and the path.
        states: A folder that gets a copy of the working folder from before each change, named by its number: what a
            kill would have left.
    """

    at: int = 0
    full: bool = False
    log: str = os.devnull
    states: str | None = None


def arm(interruption: Interruption) -> None:
    """Let it happen to this process."""
    _stop_the_clock()
    log = os.open(interruption.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    root, count = f"{os.getcwd()}{os.sep}", 0
    counted = TAKES_SPACE if interruption.full else CHANGES

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        kind, path = _change(event, arguments)
        if kind not in counted or not (path.startswith(root) or kind == "exchange"):
            return
        count += 1
        os.write(log, f"{kind} {path.removeprefix(root)}\n".encode())
        if interruption.states is not None:
            shutil.copytree(root, Path(interruption.states) / f"{count:05}")
        if not interruption.at or count < interruption.at:
            return
        if interruption.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def _change(event: str, arguments: tuple[Any, ...]) -> tuple[str, str]:
    """Return the kind of a change and its path; the kind is empty if nothing is changed."""
    if event == "ctypes.dlsym":
        return ("exchange" if arguments[1] == "renameat2" else ""), ""
    if event == "open" and not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        return "", ""
    if event == "open" and arguments[2] & UNNAMED == UNNAMED:
        return "", ""
    if event not in CHANGES or not isinstance(arguments[0], str | bytes | os.PathLike):
        return "", ""  # a file that is open already has no name
    return event, os.path.abspath(os.fsdecode(arguments[1 if event == "os.rename" else 0]))


def _stop_the_clock() -> None:
    import compress.engine.claim_file
    import eval.result_values
    import teachers.pretraining.utilisation as speed

    ticks = 0

    def look() -> float:
        nonlocal ticks
        ticks += 1
        return ticks * TICK

    class Stopped(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime(2000, 1, 1, tzinfo=tz or UTC)

    time.perf_counter = look
    eval.result_values.datetime = compress.engine.claim_file.datetime = Stopped
    speed.matrix_rate = lambda *_: 1e9  # it is measured for half a second by the clock


LOOKS, OPENED = "looks.json", re.compile(rb"was opened (once|\d+ times)")
"""What counts how often a run opened its test split: once more for every start that came so far."""


def contents(*folders: Path) -> dict[str, bytes]:
    """Return what stands in every file below some folders, hidden ones too; an empty folder counts as a file.

    How often the test split was opened is left out.
    """
    found: dict[str, bytes] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder.parent).as_posix()
            if path.name == LOOKS:
                continue
            if path.is_file():
                found[name] = OPENED.sub(b"was opened", path.read_bytes())
            elif not any(path.iterdir()):
                found[f"{name}/"] = b""
    return found


def differing(found: dict[str, bytes], expected: dict[str, bytes]) -> list[str]:
    """Return the names of files that are not alike, or that only one side has."""
    return sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
