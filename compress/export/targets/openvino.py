"""A model in OpenVINO's own form: the graph in ``openvino_model.xml``, its weights in ``openvino_model.bin``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compress.export.targets.library import Library
from compress.export.targets.optional import optional
from compress.export.targets.target import Target, Written
from eval.encoding import Array, Inputs
from eval.errors import CompressError
from eval.one_line import first_line

if TYPE_CHECKING:
    from compress.export.targets.target_options import TargetBlock
    from compress.modules.int8_scheme import Int8
    from teachers.taskmodel import TaskModel


class OpenVinoEngine:
    """OpenVINO on the processor, in float32 where it would take bfloat16 by itself."""

    def __init__(self, file: Path, threads: int, spinning: bool) -> None:
        import openvino

        settings: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
        if not spinning:  # or several processes would take the same core
            settings["ENABLE_CPU_PINNING"] = False
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


class OpenVinoTarget(Target):
    """Our ONNX graph, converted.

    OpenVINO has no 8-bit products with per-tensor ranges, so where the scheme asks for them each token gets a range of
    its own.
    """

    name = "openvino"
    summary = "For OpenVINO."
    needs = ("onnx", "openvino")
    extra = "openvino"
    adds = "exports for OpenVINO, and their runtime"
    library = Library("OpenVINO", "openvino", ("openvino_model.xml", "openvino_model.bin"), OpenVinoEngine)
    activations = ("token", "static")
    tuned = True

    def write(self, model: TaskModel, beside: Path, scheme: Int8 | None, options: TargetBlock) -> Written:
        """Write the converted graph."""
        del options
        openvino = optional("openvino", "openvino")

        from compress.onnx_graph.build import onnx_graph

        if scheme is not None and scheme.activations == "tensor":
            scheme = scheme.model_copy(update={"activations": "token"})
        made = onnx_graph(model, scheme)
        try:
            network = openvino.Core().read_model(made.graph.SerializeToString())
        except RuntimeError as error:
            raise CompressError(f"{model.name}: OpenVINO cannot convert it ({first_line(error)})") from error
        openvino.save_model(network, str(beside / "openvino_model.xml"), compress_to_fp16=False)
        return Written(made.exporter, made.float_bytes, made.opset, made.quantized, made.one_token, made.every_token)
