"""Exports: a model as files that a runtime loads without torch; the names below load on use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compress.export.engines import ExportError as ExportError
    from compress.export.folder import ExportReport as ExportReport
    from compress.export.gate import GateReport as GateReport
    from compress.export.gate import compare as compare
    from compress.export.int8 import Int8 as Int8
    from compress.export.onnx import export_onnx as export_onnx
    from compress.export.runtime import Runtime as Runtime
    from compress.export.web import export_web as export_web

_HOMES = {
    "ExportError": "engines",
    "ExportReport": "folder",
    "GateReport": "gate",
    "Int8": "int8",
    "Runtime": "runtime",
    "compare": "gate",
    "export_onnx": "onnx",
    "export_web": "web",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"compress.export.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'compress.export' has no attribute {name!r}")
