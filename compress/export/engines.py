"""The libraries that run an exported model, all with one face: named arrays in, named arrays out.

Like the other parts of ``predict.py`` it imports no more of the toolkit than ``eval.encoding``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from eval.encoding import Array, Inputs


class ExportError(ValueError):
    """A damaged export folder, or an example that the exported model cannot take."""


class Engine(Protocol):
    """A loaded model.

    Attributes:
        session: The library's own object.
    """

    session: Any

    def run(self, inputs: Inputs) -> dict[str, Array]:
        """Return the outputs by name, in the model's order."""
        ...


class OnnxEngine:
    """ONNX Runtime on the processor; takes ``.onnx`` and ``.ort``."""

    def __init__(self, file: Path, threads: int, spinning: bool) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.use_deterministic_compute = True
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spinning else "0")
        self.session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        self.outputs = [output.name for output in self.session.get_outputs()]

    def run(self, inputs: Inputs) -> dict[str, Array]:
        """Return the outputs by name."""
        return dict(zip(self.outputs, self.session.run(None, inputs), strict=True))


class OpenVinoEngine:
    """OpenVINO on the processor, in float32 where it would take bfloat16 by itself."""

    def __init__(self, file: Path, threads: int, spinning: bool) -> None:
        import openvino

        del spinning
        settings: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
        if threads:
            settings["INFERENCE_NUM_THREADS"] = threads
        core = openvino.Core()
        self.session = core.compile_model(core.read_model(str(file)), "CPU", settings)
        self.outputs = [output.get_any_name() for output in self.session.outputs]
        self.request = self.session.create_infer_request()

    def run(self, inputs: Inputs) -> dict[str, Array]:
        """Return the outputs by name."""
        found = self.request.infer(inputs)
        return {name: np.array(found[place]) for place, name in enumerate(self.outputs)}


class ExecutorchEngine:
    """ExecuTorch through its Python binding, which needs torch; on a device its C++ runtime does the same."""

    def __init__(self, file: Path, threads: int, spinning: bool) -> None:
        import executorch.kernels.quantized  # noqa: F401  (registers the 8-bit embedding)
        from executorch import runtime

        del threads, spinning
        self.session = runtime.Runtime.get().load_program(file).load_method("forward")
        self.most = int(self.session.metadata.input_tensor_meta(0).sizes()[0])

    def run(self, inputs: Inputs) -> dict[str, Array]:
        """Return the outputs, called by their places; larger batches than the program plans for run in parts."""
        import torch

        rows = len(next(iter(inputs.values())))
        parts = []
        for first in range(0, rows, self.most):
            given = [torch.from_numpy(np.ascontiguousarray(a[first : first + self.most])) for a in inputs.values()]
            parts.append([output.clone().numpy() for output in self.session.execute(given)])
        return {str(place): np.concatenate(found) for place, found in enumerate(zip(*parts, strict=True))}


MODEL_FILES: dict[str, tuple[str, ...]] = {
    "onnx": ("model.onnx",),
    "ort": ("model.ort",),
    "openvino": ("openvino_model.xml", "openvino_model.bin"),
    "executorch": ("model.pte",),
}
"""Files of the network by target of the export; the first is the one that is opened."""
ENGINES: dict[str, tuple[str, str, Callable[[Path, int, bool], Engine]]] = {
    "onnx": ("ONNX Runtime", "onnxruntime", OnnxEngine),
    "ort": ("ONNX Runtime", "onnxruntime", OnnxEngine),
    "openvino": ("OpenVINO", "openvino", OpenVinoEngine),
    "executorch": ("ExecuTorch", "executorch", ExecutorchEngine),
}
"""Name of the library, its package, and what opens a file with a number of threads (0: as the library likes)."""


def open_engine(target: str, folder: Path, threads: int, spinning: bool) -> Engine:
    """Load the network of an export folder.

    Args:
        target: A key of ``ENGINES``.
        folder: Where it lies.
        threads: Threads of one product; 0 leaves it to the library.
        spinning: Whether idle threads wait actively, for ONNX Runtime.

    Raises:
        ExportError: If the library is not installed or refuses the file.
    """
    library, package, load = ENGINES[target]
    file = folder / MODEL_FILES[target][0]
    try:
        return load(file, threads, spinning)
    except ImportError as error:
        raise ExportError(f"{package} is not installed ({first_line(error)}); run: pip install {package}") from error
    except Exception as error:  # each library has a dozen unrelated error types
        raise ExportError(f"{file}: {library} cannot load it ({first_line(error)})") from error


def first_line(error: Exception) -> str:
    """Return what an error says, in one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
