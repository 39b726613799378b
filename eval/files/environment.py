"""Environment variables that must not reach a library."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_variable(name: str) -> Iterator[None]:
    """Hide an environment variable for a while."""
    given = os.environ.pop(name, None)
    try:
        yield
    finally:
        if given is not None:
            os.environ[name] = given
