"""The formats of ``compress export --to``: one line each, loaded when asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from compress.export.onnx import ExportReport

TARGETS: dict[str, str] = {
    "onnx": "compress.export.onnx:export_onnx",
    "web": "compress.export.web:export_web",
}
"""Name and function of each; all take ``(model, folder, *, int8=None, examples=(), name=None)``."""

NEXT = {
    "onnx": "compress predict {out} TEXT",
    "web": "python -m http.server --bind 127.0.0.1 --directory {out} 8000",
}
"""The command that tries what was written."""


def exporter(target: str) -> Callable[..., ExportReport]:
    """Return the function that writes a format.

    Args:
        target: A key of ``TARGETS``.
    """
    module, _, function = TARGETS[target].partition(":")
    found: Callable[..., ExportReport] = getattr(import_module(module), function)
    return found
