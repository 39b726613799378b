"""Paths as users write them, with ``~`` for a home folder."""

from __future__ import annotations

from pathlib import Path

from eval.errors import UserError, nearest


def near_path(given: str | Path) -> str:
    """Return ``"; did you mean 'x'?"`` for the file or folder with the nearest name in the same folder, or nothing."""
    path = Path(given)
    try:
        there = [each.name for each in path.parent.iterdir() if not each.name.startswith(".")]
    except (OSError, ValueError):
        return ""
    near = nearest(path.name, there, likeness=0.8)
    return f"; did you mean {str(path.parent / near)!r}?" if near else ""


def no_folder(given: str | Path) -> str:
    """Return the sentence for a folder that does not exist, with the nearest name beside it if one is near."""
    return f"{given}: there is no such folder{near_path(given)}"


def user_path(given: str | Path) -> Path:
    """Return a path with its ``~`` or ``~name`` replaced by that user's home folder.

    Raises:
        UserError: If there is no such user, or this one has no home.
    """
    try:
        return Path(given).expanduser()
    except RuntimeError as error:
        raise UserError(
            f"{given}: no home folder is known for {Path(given).parts[0]!r}; write the path out, or put ./ before a "
            "name that begins with ~"
        ) from error


def at_home(given: str) -> str:
    """Return a name with ``~/`` at its start replaced by the home folder; others, such as of a model hub, unchanged.

    Raises:
        UserError: If this user has no home.
    """
    return str(user_path(given)) if given.startswith("~/") else given


def from_anywhere(given: str | Path) -> str:
    """Return the absolute path of what is there, so that it is found from every folder; other names stay as they are.

    Those are names of a model hub.
    """
    given = at_home(str(given))
    return str(Path(given).resolve()) if Path(given).exists() else given


def place_beside(folder: Path, end: str) -> Path:
    """Return the place beside a folder that has its whole name, dots included, and a further end."""
    folder = folder.resolve() if folder.name in ("", "..") else folder
    return folder.with_name(f"{folder.name}{end}")


def refuse_file(out: Path) -> None:
    """Refuse a file where a folder is to be written.

    Raises:
        UserError: If it is one.
    """
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: is a file; --out takes a folder")
