"""What a model can be exported to, and what writes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from eval.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from compress.export.folder import ExportReport
    from compress.export.int8 import Int8
    from teachers.taskmodel import TaskModel

TARGETS: dict[str, str] = {
    "onnx": "compress.export.onnx:write_onnx",
    "ort": "compress.export.ort_format:write_ort",
    "openvino": "compress.export.openvino:write_openvino",
    "executorch": "compress.export.executorch:write_executorch",
    "web": "compress.export.web:export_web",
}
"""Every target by the name that ``compress export --to`` and recipes give it, and what writes its network. The folder
for the browser is not laid out like the others, and written as a whole."""

NEXT = {
    "onnx": "compress predict {out} TEXT",
    "web": "python -m http.server --bind 127.0.0.1 --directory {out} 8000",
}
"""The command that tries what was written; that of onnx where there is no other."""


NEEDS: dict[str, tuple[str, ...]] = {
    "onnx": ("onnx", "onnxruntime"),
    "ort": ("onnx", "onnxruntime"),
    "openvino": ("onnx", "openvino"),
    "executorch": ("executorch",),
    "web": ("onnx", "onnxruntime"),
}
"""Packages without which a target is neither written nor compared with its model."""


class Export(Protocol):
    """What exporting to any target takes; see ``folder.write_export``."""

    def __call__(
        self,
        model: TaskModel,
        folder: str | Path,
        *,
        int8: bool | Int8 | None = None,
        examples: Sequence[Mapping[str, Any]] = (),
        name: str | None = None,
        agreement: float = ...,
        made_from: str | None = None,
    ) -> ExportReport:
        """Write an export of ``model`` into ``folder``."""
        ...


def not_installed(target: str) -> list[str]:
    """Return a sentence for each package that a target needs and that is not installed."""
    missing = [package for package in NEEDS[target] if find_spec(package) is None]
    return [f"{name} is not installed; run: pip install {_distribution(name)}" for name in missing]


def _distribution(package: str) -> str:
    return f"'nlp-compress[{package}]'" if package in ("openvino", "executorch") else package


def refused(target: str, model: TaskModel, scheme: Int8 | None) -> list[str]:
    """Return why a model cannot be exported to a target, as far as its network and task say it; nothing is computed.

    Args:
        target: A key of ``TARGETS``.
        model: What would be exported.
        scheme: Its 8-bit scheme; None for float32.
    """
    from compress.export.folder import model_problems

    own = getattr(import_module(TARGETS[target].partition(":")[0]), "refused", None)
    return [*model_problems(model, scheme), *([] if own is None else own(model))]


def export_to(target: str) -> Export:
    """Return the function that exports to a target.

    Raises:
        UserError: If there is no such target.
    """
    if target not in TARGETS:
        raise UserError(f"--to: got {target!r}{did_you_mean(target, TARGETS)}")
    module, _, function = TARGETS[target].partition(":")
    found = getattr(import_module(module), function)
    if target == "web":
        whole: Export = found
        return whole
    from compress.export.folder import write_export

    return partial(write_export, target=target, write=found)
