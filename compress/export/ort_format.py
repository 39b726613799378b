"""A model in ONNX Runtime's own format, ``model.ort``, which its small builds for phones and browsers load."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from compress.export.folder import Written
from compress.export.int8 import Int8
from compress.export.onnx import write_onnx
from eval.errors import CompressError
from teachers.taskmodel import TaskModel

CONVERTER = "onnxruntime.tools.convert_onnx_models_to_ort"


def write_ort(model: TaskModel, beside: Path, scheme: Int8 | None) -> Written:
    """Write ``model.ort``, optimized already, and a list of the operators that it needs; see ``write_export``.

    ONNX Runtime's own converter writes it for ARM, that is without layouts that suit one processor alone, so it loads
    anywhere. ``model.required_operators.config`` is what ``--include_ops_by_config`` of a minimal build reads.

    Raises:
        CompressError: If the graph cannot be converted.
    """
    written = write_onnx(model, beside, scheme)
    source = beside / "model.onnx"
    # In a process of its own: the converter prints, and sets up logging for all.
    command = [sys.executable, "-m", CONVERTER, "--optimization_style", "Fixed", "--target_platform", "arm"]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CompressError(f"{model.name}: ONNX Runtime cannot convert it ({last})")
    source.unlink()
    return written
