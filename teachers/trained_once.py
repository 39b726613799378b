"""What takes long to train is trained once, by one run at a time, kept under ``COMPRESS_HOME`` and found again."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from eval.errors import UserError
from eval.files.writing import atomic_folder, exclusive, lock_file
from eval.progress.stages import under_way
from teachers.training.processes import how_many, is_first, wait_for_all

_ONLY_FOUND: ContextVar[bool] = ContextVar("only_found", default=False)


@contextlib.contextmanager
def only_found() -> Iterator[None]:
    """Train nothing until the end: what was trained before is found, or it is said where it is missing."""
    token = _ONLY_FOUND.set(True)
    try:
        yield
    finally:
        _ONLY_FOUND.reset(token)


def trained_once(
    folder: Path,
    what: str,
    is_kept: Callable[[], bool],
    train: Callable[[Path], Any],
    write: Callable[[Any, Path], None],
) -> None:
    """Train what ``folder`` is to hold, unless it is there; of several runs one trains and the others wait for it.

    Args:
        folder: The place.
        what: What is trained, for messages.
        is_kept: Whether it is there and whole.
        train: Trains, with checkpoints in the folder it is given, and returns facts.
        write: Writes facts and all else into the folder it is given.

    Raises:
        UserError: If it is not there, within ``only_found``.
        CompressError: If the disk refuses.
    """
    if _ONLY_FOUND.get() and not is_kept():
        raise UserError(
            f"{folder}: {what} is not there any more; set COMPRESS_HOME to the folder in which the run kept it, or "
            "make it again by running the recipe"
        )
    working = folder.with_name(folder.name + ".working")
    if how_many() == 1 and is_kept():
        _clear(working, lock_file(folder))
        return
    with _one_run(folder):
        if not is_kept():
            with under_way(what, kept_in=working):
                facts = train(working)
            if is_first():
                with atomic_folder(folder, what) as beside:
                    write(facts, beside)
        if is_first():
            _clear(working)
        wait_for_all()


def _clear(*left: Path) -> None:
    """Remove what nobody needs once the folder is there; an earlier run may have been killed before it did so."""
    for path in left:
        shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            path.unlink()


@contextlib.contextmanager
def _one_run(folder: Path) -> Iterator[None]:
    """Let the processes of one run go on together, while those of other runs wait."""
    with contextlib.ExitStack() as stack:
        if is_first():
            stack.enter_context(exclusive(folder))
        if how_many() > 1:
            _begin_together()
        yield


def _begin_together() -> None:
    """Wait for the other processes of this run, which have not trained together yet."""
    import torch
    from accelerate import PartialState

    PartialState(cpu=not torch.cuda.is_available()).wait_for_everyone()
