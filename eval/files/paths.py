"""Paths as users write them, with ``~`` for a home folder."""

from __future__ import annotations

from pathlib import Path

from eval.errors import UserError


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
