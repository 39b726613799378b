"""What a model can be exported to, and what writes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from eval.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from compress.export.folder import ExportReport
    from compress.export.int8 import Int8
    from teachers.taskmodel import TaskModel

TARGETS: dict[str, str] = {
    "onnx": "compress.export.onnx:export_onnx",
    "ort": "compress.export.ort_format:export_ort",
    "openvino": "compress.export.openvino:export_openvino",
    "executorch": "compress.export.executorch:export_executorch",
    "web": "compress.export.web:export_web",
}
"""Every target by the name that ``compress export --to`` and recipes give it."""

NEXT = {
    "onnx": "compress predict {out} TEXT",
    "web": "python -m http.server --bind 127.0.0.1 --directory {out} 8000",
}
"""The command that tries what was written; that of onnx where there is no other."""


class Export(Protocol):
    """What the functions in ``TARGETS`` have in common; see ``folder.write_export``."""

    def __call__(
        self,
        model: TaskModel,
        folder: str | Path,
        *,
        int8: bool | Int8 | None = None,
        examples: Sequence[Mapping[str, Any]] = (),
        name: str | None = None,
        agreement: float = ...,
    ) -> ExportReport:
        """Write an export of ``model`` into ``folder``."""
        ...


def export_to(target: str) -> Export:
    """Return the function that exports to a target.

    Raises:
        UserError: If there is no such target.
    """
    if target not in TARGETS:
        raise UserError(f"--to: got {target!r}{did_you_mean(target, TARGETS)}")
    module, _, function = TARGETS[target].partition(":")
    found: Export = getattr(import_module(module), function)
    return found
