"""A search for the smallest or fastest model within a budget: Optuna proposes, short trainings decide, one wins."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PUBLIC = {
    "Budget": "compress.search.budget",
    "Found": "compress.search.searching",
    "read_budget": "compress.search.budget",
    "search": "compress.search.searching",
}

__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'compress.search' has no attribute {name!r}")
