"""How a full disk is told, whoever noticed it; part of ``predict.py``, so it imports nothing of the toolkit."""

from __future__ import annotations

import errno
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT)
RESUME = "go on with --resume or the same command"


def full_disk(error: BaseException, place: Path | str | None = None, then: str = RESUME) -> str | None:
    """Return the sentence about a full disk or an exhausted quota; None if an error says something else.

    Args:
        error: What was raised.
        place: What could not be written; by default the file that the error names.
        then: What to do once there is space.
    """
    if not isinstance(error, OSError) or error.errno not in FULL:
        return None
    place = place or error.filename
    return f"the disk is full{f' ({place})' if place else ''}; free some space, then {then}"
