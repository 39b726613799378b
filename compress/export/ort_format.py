"""A model in ONNX Runtime's own format, ``model.ort``, which its small builds for phones and browsers load."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compress.export.folder import AGREEMENT, ExportReport, Written, write_export
from compress.export.int8 import Int8
from compress.export.onnx import onnx_graph
from eval.errors import CompressError
from teachers.taskmodel import TaskModel

CONVERTER = "onnxruntime.tools.convert_onnx_models_to_ort"


def export_ort(
    model: TaskModel,
    folder: str | Path,
    *,
    int8: bool | Int8 | None = None,
    examples: Sequence[Mapping[str, Any]] = (),
    name: str | None = None,
    agreement: float = AGREEMENT,
) -> ExportReport:
    """Write a folder with ``model.ort``, optimized already, and a list of the operators that it needs.

    ONNX Runtime's own converter writes it for ARM, that is without layouts that suit one processor alone, so it loads
    anywhere. ``model.required_operators.config`` is what ``--include_ops_by_config`` of a minimal build reads.

    Args:
        model: A model with its tokenizer and task, or an artifact.
        folder: A new or empty folder, or an earlier export.
        int8: As ``write_export`` takes it, and so are the rest.
        examples: Real inputs for the gate.
        name: What reports call the export.
        agreement: For int8, the least share of equal decisions.

    Raises:
        UserError: If the folder holds something else, a pattern names no module, or the model is too large.
        CompressError: If the model cannot be converted, the disk refuses, or the export does not answer as the model.
    """

    def write(beside: Path, scheme: Int8 | None) -> Written:
        import onnx

        graph, written = onnx_graph(model, scheme)
        source = beside / "model.onnx"
        onnx.save(graph, str(source))
        # In a process of its own: the converter prints, and sets up logging for all.
        command = [sys.executable, "-m", CONVERTER, "--optimization_style", "Fixed", "--target_platform", "arm"]
        done = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise CompressError(f"{model.name}: ONNX Runtime cannot convert it ({last})")
        source.unlink()
        return written

    return write_export(model, folder, "ort", write, int8=int8, examples=examples, name=name, agreement=agreement)
