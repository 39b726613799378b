"""Exports: a model as files that a runtime loads without torch; the names below load on use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compress.export.check.gate import GateReport as GateReport
    from compress.export.check.gate import compare as compare
    from compress.export.folder import ExportReport as ExportReport
    from compress.export.folder import export as export
    from compress.export.folder import export_onnx as export_onnx
    from compress.export.folder import export_web as export_web
    from compress.export.runtime.answering import Runtime as Runtime
    from compress.export.runtime.task_set import TaskSet as TaskSet
    from compress.export.several_adapters import export_adapters as export_adapters
    from compress.export.targets.library import Engine as Engine
    from compress.export.targets.library import ExportError as ExportError
    from compress.export.targets.library import Library as Library
    from compress.export.targets.target import Target as Target
    from compress.export.targets.target import Written as Written
    from compress.export.targets.target_options import TargetBlock as TargetBlock
    from compress.modules.int8_scheme import Int8 as Int8

_HOMES = {
    "Engine": "compress.export.targets.library",
    "ExportError": "compress.export.targets.library",
    "ExportReport": "compress.export.folder",
    "GateReport": "compress.export.check.gate",
    "Int8": "compress.modules.int8_scheme",
    "Library": "compress.export.targets.library",
    "Runtime": "compress.export.runtime.answering",
    "Target": "compress.export.targets.target",
    "TaskSet": "compress.export.runtime.task_set",
    "TargetBlock": "compress.export.targets.target_options",
    "Written": "compress.export.targets.target",
    "compare": "compress.export.check.gate",
    "export": "compress.export.folder",
    "export_adapters": "compress.export.several_adapters",
    "export_onnx": "compress.export.folder",
    "export_web": "compress.export.folder",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'compress.export' has no attribute {name!r}")
