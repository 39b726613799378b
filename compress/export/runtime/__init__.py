"""Answers from an export folder, without torch; and the program that every export carries to do the same elsewhere.

The names below load on use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compress.export.runtime.answering import Runtime as Runtime
    from compress.export.targets.library import ExportError as ExportError

_HOMES = {"ExportError": "compress.export.targets.library", "Runtime": "compress.export.runtime.answering"}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
