"""A model in ONNX Runtime's own format, ``model.ort``, which its small builds for phones and browsers load."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from compress.export.targets.library import Library
from compress.export.targets.onnx import OnnxEngine, write_onnx
from compress.export.targets.target import Target, Written
from eval.errors import CompressError

if TYPE_CHECKING:
    from compress.export.targets.target_options import TargetBlock
    from compress.modules.int8_scheme import Int8
    from teachers.taskmodel import TaskModel

CONVERTER = "onnxruntime.tools.convert_onnx_models_to_ort"


class OrtTarget(Target):
    """``model.ort``, optimized already, and a list of the operators that it needs.

    ONNX Runtime's own converter writes it for ARM, that is without layouts that suit one processor alone, so it loads
    anywhere. ``model.required_operators.config`` is what ``--include_ops_by_config`` of a minimal build reads.
    """

    name = "ort"
    summary = "ONNX Runtime's own format, for its small builds."
    needs = ("onnx", "onnxruntime")
    library = Library("ONNX Runtime", "onnxruntime", ("model.ort",), OnnxEngine)
    speed_is_input = True

    def write(self, model: TaskModel, beside: Path, scheme: Int8 | None, options: TargetBlock) -> Written:
        """Write the ONNX graph, and convert it."""
        del options
        source = beside / "model.onnx"
        written = write_onnx(model, source, scheme)
        # In a process of its own: the converter prints, and sets up logging for all.
        command = [sys.executable, "-m", CONVERTER, "--optimization_style", "Fixed", "--target_platform", "arm"]
        done = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise CompressError(f"{model.name}: ONNX Runtime cannot convert it ({last})")
        source.unlink()
        return written
