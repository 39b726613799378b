"""A model as an ExecuTorch program, ``model.pte``, for phones and small boards."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from compress.export.targets.library import Library
from compress.export.targets.optional import optional
from compress.export.targets.target import Target, Written
from eval.encoding import Array, Inputs
from eval.kinds.kind_registry import kind_of

if TYPE_CHECKING:
    from compress.export.targets.target_options import TargetBlock
    from compress.modules.int8_scheme import Int8
    from teachers.taskmodel import TaskModel


class ExecutorchEngine:
    """ExecuTorch through its Python binding, which needs torch; on a device its C++ runtime does the same.

    A program answers one caller at a time, so threads that share an engine take turns.
    """

    def __init__(self, file: Path, threads: int, spinning: bool) -> None:
        import threading

        import executorch.kernels.quantized  # noqa: F401  (registers the 8-bit embedding)
        from executorch import runtime

        del threads, spinning
        self.session = runtime.Runtime.get().load_program(file).load_method("forward")
        self.turn = threading.Lock()
        self.most = int(self.session.metadata.input_tensor_meta(0).sizes()[0])

    def run(self, inputs: Inputs) -> dict[str, Array]:
        """Return the outputs, called by their places; larger batches than the program plans for run in parts."""
        import torch

        rows = len(next(iter(inputs.values())))
        parts = []
        for first in range(0, rows, self.most):
            given = [torch.from_numpy(np.ascontiguousarray(a[first : first + self.most])) for a in inputs.values()]
            with self.turn:
                parts.append([output.clone().numpy() for output in self.session.execute(given)])
        return {str(place): np.concatenate(found) for place, found in enumerate(zip(*parts, strict=True))}


class ExecutorchTarget(Target):
    """``model.pte``, which any ExecuTorch runtime with XNNPACK loads.

    Batches of 1 to 8 and all lengths up to the model's are one program. In 8 bits, weights have per-channel scales and
    activations per-token ranges, found at run time, also where the lineage holds static ranges.
    """

    name = "executorch"
    summary = "For ExecuTorch on phones and small boards."
    needs = ("executorch",)
    extra = "executorch"
    hub_library = "executorch"
    adds = "exports for ExecuTorch, and their runtime (executorch)"
    library = Library("ExecuTorch", "executorch", ("model.pte",), ExecutorchEngine)
    activations = ("token",)

    def refused(self, model: TaskModel, options: TargetBlock) -> list[str]:
        """Return why ExecuTorch cannot express a model; nothing if it can."""
        del options
        found = []
        if hasattr(model.model, "stops"):
            found.append(f"{model.name}: leaves early, which ExecuTorch cannot express; export it to onnx")
        kind = kind_of(model.task.kind)
        if len(kind.graph_outputs) > 1:
            found.append(
                f"{model.name}: ExecuTorch fixes the batch of {kind.named} head when it lowers it; export it to onnx"
            )
        return found

    def write(self, model: TaskModel, beside: Path, scheme: Int8 | None, options: TargetBlock) -> Written:
        """Write ``model.pte``."""
        del options
        optional("executorch.exir", "executorch")

        from compress.export.targets.executorch_program import executorch_program

        program, float_bytes, quantized = executorch_program(model, scheme)
        with (beside / "model.pte").open("wb") as stream:
            program.write_to_file(stream)
        return Written("executorch", float_bytes, quantized=quantized)
