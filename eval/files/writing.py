"""Nothing is lost: files and folders are written beside their place and get their name only once they are whole."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import re
import shutil
import stat
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from eval.errors import CompressError, UserError
from eval.files.full_disk import full_disk

fcntl: Any
try:
    import fcntl
except ImportError:  # no such locks on this system, so what a killed process left stays
    fcntl = None

logger = logging.getLogger("eval.files.writing")

WRITING, OLD = "writing", "old"
"""Ends the name of what is not whole yet, and of what makes room for it where names cannot be exchanged."""
_ANY_NUMBER = "[0-9a-f]" * 8
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def atomic_write(path: Path, data: bytes) -> None:
    """Write a file so that it is whole or not there at all; see ``atomic_file``."""
    with atomic_file(path) as beside:
        beside.write_bytes(data)


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Give a place to write a file to; it takes the place of ``path`` when all went well.

    A link is followed to what it names. What is no regular file (a device, a FIFO, a stream of this process) cannot be
    replaced and is written to.

    Args:
        path: The file; its folder must exist.

    Yields:
        The path to write to.

    Raises:
        UserError: A folder is there.
        OSError: The disk is full or the folder cannot be written, whatever library found it out.
    """
    if _is_stream(path):
        with tempfile.TemporaryDirectory() as folder, _library_errors(path):
            written = Path(folder) / path.name
            yield written
            with written.open("rb") as source, _open_stream(path) as stream:
                shutil.copyfileobj(source, stream)
        return
    place = _place(path)
    if place.is_dir():
        raise UserError(f"{path}: is a folder; name a file")
    with _workplace(place) as beside, _library_errors(path):
        yield beside / place.name
        _settle(beside, stat.S_IMODE(place.stat().st_mode) if place.exists() else None)
        os.replace(beside / place.name, place)
        _sync(place.parent)


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Let one process at a time make a folder, unless it is there; the others wait, and then find it.

    A process that ends in any way lets the next one in.

    Args:
        folder: The place; a hidden file beside it is locked, and removed once the folder is made.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(lock_file(folder))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        logger.info("%s: another process is making it; waiting until it is done", folder)
        lock.acquire()
    try:
        yield
        with suppress(OSError):  # a system that keeps open files
            lock_file(folder).unlink()  # two may get in now, and both find the folder
    finally:
        lock.release()


def refuse_unwritable(place: Path) -> None:
    """Refuse a file or folder that cannot be written where it is wanted, before the work whose result it shall hold.

    Raises:
        UserError: If the disk refuses.
    """
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        os.rmdir(tempfile.mkdtemp(prefix=".", dir=place.parent))
    except OSError as error:
        raise UserError(f"{place}: cannot be written ({error.strerror or error}); choose another place") from error


def lock_file(folder: Path) -> Path:
    """Return the file that is locked while a folder is made; once it is made, anybody may remove it."""
    return folder.with_name(f".{folder.name}.lock")


@contextmanager
def atomic_folder(folder: Path, what: str) -> Iterator[Path]:
    """Give an empty folder to write into; it takes the place of ``folder`` when all went well, else it is removed.

    A link is followed: what it names is replaced, and it stays a link. All files get the modes that the user's umask
    gives, whatever library wrote them, and are on the disk before the folder gets its name.

    Args:
        folder: The place; what stands there is replaced at the end and stays as it is after a failure.
        what: What is written, for the message.

    Yields:
        The folder to write into.

    Raises:
        CompressError: If the disk refuses.
    """
    try:
        place = _place(folder)
        with _workplace(place) as beside, _library_errors(folder):
            yield beside
            _settle(beside)
            _replace(beside, place)
            _sync(place.parent)
    except OSError as error:
        otherwise = f"{folder}: {what} could not be written ({error}); what stood there is unchanged"
        raise CompressError(full_disk(error, folder) or otherwise) from error


def clear_leftovers(folder: Path, name: str = "*") -> None:
    """Remove what processes left that were killed while they wrote into a folder: nobody holds its lock.

    Args:
        folder: Where to look; what lies deeper is left alone.
        name: Of the files and folders that were being written, as a pattern of ``glob``.
    """
    for left in folder.glob(f".{name}.{_ANY_NUMBER}.{WRITING}"):
        if (held := _lock(left)) is not None:
            shutil.rmtree(left, ignore_errors=True)
            os.close(held)
    for left in folder.glob(f".{name}.{_ANY_NUMBER}.{OLD}"):
        if (held := _lock(left)) is not None:  # the kill came after it had made room
            place = folder / left.name[1:].rsplit(".", 2)[0]
            shutil.rmtree(left, ignore_errors=True) if place.exists() else os.replace(left, place)
            os.close(held)


@contextmanager
def _workplace(place: Path) -> Iterator[Path]:
    """Give a hidden folder beside a place, locked as long as this process writes into it, and removed at the end.

    What a process left that was killed here is removed first.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    clear_leftovers(place.parent, _literal(place.name))
    while True:
        folder = place.with_name(f".{place.name}.{uuid.uuid4().hex[:8]}.{WRITING}")
        folder.mkdir()
        held = _lock(folder)
        if fcntl is None or (held is not None and folder.is_dir()):  # else another has just taken it for a leftover
            break
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if held is not None:
            os.close(held)


def is_unfinished(path: Path) -> bool:
    """Whether a path is what a killed process left of a file or folder that it was writing, or its lock."""
    return path.name.startswith(".") and path.name.endswith((f".{WRITING}", f".{OLD}", ".lock"))


def _place(path: Path) -> Path:
    """Return what a path names, links followed."""
    try:
        return path.resolve()
    except RuntimeError as error:  # what Python before 3.13 says of a loop of links
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from error


def _literal(name: str) -> str:
    """Return a name so that a pattern of ``glob`` means just it."""
    return re.sub(r"([*?[])", r"[\1]", name)


def _lock(folder: Path) -> int | None:
    """Return a descriptor that holds the lock of a folder, or None if somebody else holds it or there are no locks."""
    if fcntl is None:
        return None
    try:
        held = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        return None
    return held


def _is_stream(path: Path) -> bool:
    """Whether a path is something that cannot be replaced: a device, a FIFO, or a stream of this process."""
    if path.absolute().parts[:2] in (("/", "dev"), ("/", "proc")):
        return True
    with suppress(OSError):
        mode = path.stat().st_mode
        return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)
    return False


def _open_stream(path: Path) -> IO[bytes]:
    """Open a stream for writing; one of this process is shared, or what it says next would be written over it."""
    own = re.fullmatch(r"/dev/fd/(\d+)|/proc/self/fd/(\d+)|/dev/(stdout|stderr)", str(path))
    if own is None:
        return path.open("wb")
    sys.stdout.flush()
    return os.fdopen(os.dup(int(own[1] or own[2] or {"stdout": 1, "stderr": 2}[own[3]])), "wb")


def _settle(folder: Path, mode: int | None = None) -> None:
    """Give all files below a folder their modes and bring them to the disk.

    Args:
        folder: Its own mode is what the umask gives a new folder.
        mode: Of the files; by default what the umask gives a new file, and what they are allowed besides.
    """
    usual = stat.S_IMODE(folder.stat().st_mode) & 0o666
    for root, _, names in os.walk(folder):
        for name in names:
            file = Path(root) / name
            if file.is_symlink():
                continue
            file.chmod(stat.S_IMODE(file.stat().st_mode) | usual if mode is None else mode)
            _sync(file)
        _sync(Path(root))


def _sync(path: Path) -> None:
    with suppress(PermissionError):  # of a folder, on systems that cannot open one
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _replace(new: Path, folder: Path) -> None:
    """Put a folder in the place of another; there is no moment at which neither is there, where the system can."""
    if not folder.exists():
        os.replace(new, folder)
        return
    if _exchange(new, folder):
        return  # what was old stands in the workplace now, and goes with it
    old = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.{OLD}")
    held = _lock(folder)  # of the folder itself, whatever its name
    try:
        os.replace(folder, old)
        try:
            os.replace(new, folder)
        except OSError:
            os.replace(old, folder)
            raise
        shutil.rmtree(old, ignore_errors=True)
    finally:
        if held is not None:
            os.close(held)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two folders at once; False where the system or the file system cannot."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):
        return False
    return bool(rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0)


@contextmanager
def _library_errors(path: Path) -> Iterator[None]:
    """Turn what libraries written in Rust say of the disk into the OSError that it is."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        found = re.search(r"\(os error (\d+)\)", str(error))
        if found is None:
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1])), str(path)) from error
