"""A model as an ONNX folder, for ONNX Runtime and whatever else reads ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from compress.export.targets.library import Library
from compress.export.targets.target import Target, Written
from eval.encoding import Array, Inputs

if TYPE_CHECKING:
    from compress.export.targets.target_options import TargetBlock
    from compress.modules.int8_scheme import Int8
    from teachers.taskmodel import TaskModel


class OnnxEngine:
    """ONNX Runtime on the processor; takes ``.onnx`` and ``.ort``."""

    def __init__(self, file: Path, threads: int, spinning: bool) -> None:
        self.file = file
        self.session = self.opened(file, threads, spinning)
        self.outputs = [output.name for output in self.session.get_outputs()]

    @staticmethod
    def opened(file: Path, threads: int, spinning: bool) -> Any:
        """Return a session of ONNX Runtime."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.use_deterministic_compute = True
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spinning else "0")
        return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])

    def for_threads(self, count: int) -> list[Any]:
        """Return an engine for each of some threads that call them at once; they share one session."""
        return [type(self)(self.file, 1, False)] * count

    def run(self, inputs: Inputs) -> dict[str, Array]:
        """Return the outputs by name."""
        return dict(zip(self.outputs, self.session.run(None, inputs), strict=True))

    @staticmethod
    def problems(file: Path) -> list[str]:
        """Return that a graph names external data: an entry with the key ``location``, as protobuf writes it."""
        import mmap

        if file.suffix != ".onnx" or not file.stat().st_size:  # cannot be mapped; whoever loads it says what is wrong
            return []
        with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            elsewhere = content.find(b"\n\x08location\x12") >= 0
        return [f"{file.name} keeps weights in other files, which no export does"] if elsewhere else []


class OnnxTarget(Target):
    """The ONNX graph in ``model.onnx``.

    Args:
        opset: Version of the ONNX operators; by default that of ``onnx_graph``.
    """

    name = "onnx"
    summary = "For ONNX Runtime and whatever else reads ONNX."
    needs = ("onnx", "onnxruntime")
    library = Library("ONNX Runtime", "onnxruntime", ("model.onnx",), OnnxEngine)
    tuned = True
    speed_is_input = True

    def __init__(self, opset: int | None = None) -> None:
        self.opset = opset

    def write(self, model: TaskModel, beside: Path, scheme: Int8 | None, options: TargetBlock) -> Written:
        """Write ``model.onnx``."""
        del options
        return write_onnx(model, beside / "model.onnx", scheme, self.opset)


def write_onnx(
    model: TaskModel, file: Path, scheme: Int8 | None, opset: int | None = None, cache: bool = False
) -> Written:
    """Write a model as an ONNX file; see ``onnx_graph``."""
    import onnx

    from compress.onnx_graph.build import onnx_graph

    made = onnx_graph(model, scheme, opset, cache)
    onnx.save(made.graph, str(file))
    return Written(made.exporter, made.float_bytes, made.opset, made.quantized, made.one_token, made.every_token)
