"""The folder for teachers, caches and what is remembered from run to run: ``COMPRESS_HOME``."""

from __future__ import annotations

import os
from pathlib import Path

from eval.files.paths import user_path


def home() -> Path:
    """Return ``COMPRESS_HOME``, by default a folder among the user's caches."""
    given = os.environ.get("COMPRESS_HOME")
    if given:
        return user_path(given)
    return user_path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "nlp-compress"
