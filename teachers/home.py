"""Where teachers and caches live outside of the repository."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """Return ``COMPRESS_HOME``, by default a folder among the user's caches."""
    given = os.environ.get("COMPRESS_HOME")
    if given:
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "nlp-compress"
