"""Answers from several processes, each with one thread and the model loaded for itself: batch work on all cores."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

from compress.export.runtime.answering import Runtime, usable_cores
from compress.export.runtime.task_set import TaskSet, opened
from compress.export.runtime.windows import Window, in_order, windows
from compress.export.targets.library import ExportError

AUTO = "auto"
MOST_PROCESSES = 1024
SHARE = 1024
"""Lines that a process gets at a time: few enough that all of them end at about the same time."""


def process_count(asked: str) -> int:
    """Return the number of processes that an option names: ``auto`` is one for each physical core.

    Raises:
        ValueError: It is neither ``auto`` nor a whole number from 1 to ``MOST_PROCESSES``.
    """
    if asked == AUTO:
        return min(usable_cores() or os.cpu_count() or 1, MOST_PROCESSES)
    if asked.isascii() and asked.isdecimal() and len(asked) < 6 and 0 < int(asked) <= MOST_PROCESSES:
        return int(asked)
    raise ValueError(f"got {asked[:20]!r}, must be {AUTO} or a whole number from 1 to {MOST_PROCESSES:,}")


def json_lines(
    folder: Path,
    lines: Iterable[str | Mapping[str, Any]],
    processes: int = 1,
    *,
    threads: int | None = None,
    chunk: int | None = None,
    batch_size: int | None = None,
    speed: float | None = None,
    prompt_name: str | None = None,
) -> Iterator[bytes]:
    """Answer lines; yields lines of JSON, one or many at a time, in the order of the lines.

    Of an export of several tasks a line holds the answer of each, by its name.

    Args:
        folder: The export.
        lines: Any number of them, or examples, as ``example`` reads them.
        processes: With 1 it is this one, with all its threads; more have one thread each, and hold about ``SHARE``
            lines each and as many again that wait for them.
        threads: As of ``Runtime``, of one process.
        chunk: As in ``Runtime.stream``, of one process.
        batch_size: As in ``Runtime.stream``.
        speed: As of ``Runtime``.
        prompt_name: Likewise.

    Raises:
        ExportError: As ``Runtime`` and ``Runtime.stream`` do; or a process ended before its answers came.
    """
    if processes == 1:
        for answer in opened(folder, threads, speed=speed, prompt_name=prompt_name).stream(lines, chunk, batch_size):
            yield _json_line(answer)
        return
    share = partial(_share_answered, folder, batch_size, speed, prompt_name)
    pool = _Processes(processes, multiprocessing.get_context("spawn"), initializer=_end_with_parent)
    try:
        yield from in_order(pool, share, windows(lines, SHARE), 2 * processes - 1)
    except BrokenProcessPool as error:
        raise ExportError(
            "a process ended before its answers came (killed, or out of memory); fewer processes need less memory"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


class _Processes(ProcessPoolExecutor):
    """Processes that start with Ctrl-C held back, or it would end them in the middle of an import, with a traceback."""

    def submit(self, *call: Any, **named: Any) -> Future[Any]:
        """Give them something to do, which may start one."""
        with _interrupts_held():
            return super().submit(*call, **named)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _json_line(answer: Mapping[str, Any]) -> bytes:
    return json.dumps(answer, ensure_ascii=False).encode() + b"\n"


def _share_answered(
    folder: Path, batch_size: int | None, speed: float | None, prompt_name: str | None, window: Window
) -> bytes:
    """Answer lines in a process of their own."""
    parts = _opened(folder, speed, prompt_name).by_window([window], batch_size)
    return b"".join(_json_line(answer) for part in parts for answer in part.answers)


@cache
def _opened(folder: Path, speed: float | None, prompt_name: str | None) -> Runtime | TaskSet:
    return opened(folder, 1, spinning=False, speed=speed, prompt_name=prompt_name)


def _end_with_parent() -> None:
    """Let Ctrl-C end this process without a word, and so does the end of its parent, whatever ended it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):  # it was held back until here
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread for each process
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
