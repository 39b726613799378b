"""Nothing is lost: files and folders are written beside their place and get their name only once they are whole."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock

from eval.errors import CompressError


def write_beside(path: Path, data: bytes) -> None:
    """Write a file so that it is whole or not there at all.

    Raises:
        OSError: The disk is full or the folder cannot be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Let one process at a time make a folder, unless it is there; the others wait, and then find it.

    A process that ends in any way lets the next one in.

    Args:
        folder: The place; a hidden file beside it is locked, and removed once the folder is made.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = folder.with_name(f".{folder.name}.lock")
    with FileLock(lock):
        yield
        with suppress(OSError):  # a system that keeps open files
            lock.unlink()  # two may get in now, and both find the folder


@contextmanager
def whole_folder(folder: Path, what: str) -> Iterator[Path]:
    """Give an empty folder to write into; it takes the place of ``folder`` when all went well, else it is removed.

    Args:
        folder: The place; what stands there is replaced at the end and stays as it is after a failure.
        what: What is written, for the message.

    Yields:
        The folder to write into.

    Raises:
        CompressError: If the disk refuses.
    """
    beside = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.writing")
    try:
        beside.mkdir(parents=True)
        yield beside
        _replace(beside, folder)
    except OSError as error:
        message = f"{folder}: {what} could not be written ({error}); what stood there is unchanged"
        raise CompressError(message) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _replace(new: Path, folder: Path) -> None:
    if not folder.exists():
        os.replace(new, folder)
        return
    old = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.old")
    os.replace(folder, old)
    try:
        os.replace(new, folder)
    except OSError:
        os.replace(old, folder)
        raise
    shutil.rmtree(old, ignore_errors=True)
