"""A model in OpenVINO's own form: the graph in ``openvino_model.xml``, its weights in ``openvino_model.bin``."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
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
    from compress.export.targets.target_options import OpenVinoBlock, TargetBlock
    from compress.modules.int8_scheme import Int8
    from teachers.taskmodel import TaskModel

NAMES = {"bf16": " with bf16", "f32": ""}
"""What stands behind the name of a form."""


class OpenVinoEngine:
    """OpenVINO on the processor, in the precision that the file states: bfloat16 only where the processor has it.

    Attributes:
        session: OpenVINO's compiled model.
        stated: The precision that the file states, ``bf16`` or ``f32``; files from before it was stated are ``f32``.
        precision: The precision that it runs in.
    """

    def __init__(self, file: Path, threads: int, spinning: bool) -> None:
        import warnings

        import openvino

        core = openvino.Core()
        network = core.read_model(str(file))
        place = ["compress", "precision"]
        self.stated = str(network.get_rt_info(place).value) if network.has_rt_info(place) else "f32"
        can = self.stated == "f32" or "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        self.precision = self.stated if can else "f32"
        if not can:
            warnings.warn(f"{file}: runs in float32, for this processor has no bfloat16", stacklevel=2)
        settings: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": self.precision}
        if not spinning:  # or several processes would take the same core
            settings["ENABLE_CPU_PINNING"] = False
        if threads:
            settings["INFERENCE_NUM_THREADS"] = threads
        self.session = core.compile_model(network, "CPU", settings)
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

    def options(self) -> type[OpenVinoBlock]:
        """Return the options of every target, and the precision."""
        from compress.export.targets.target_options import OpenVinoBlock

        return OpenVinoBlock

    def refused(self, model: TaskModel, options: TargetBlock) -> list[str]:
        """Refuse bfloat16 where it does not run: what it changes could not be compared."""
        if getattr(options, "precision", "auto") != "bf16" or find_spec("openvino") is None or has_bf16():
            return []
        return [f"{model.name}: this processor has no bfloat16; export it on one that has, or leave precision out"]

    def precisions(self, options: TargetBlock) -> Mapping[str, TargetBlock]:
        """Return bfloat16 first where the processor has it, then float32; or the one that is asked for."""
        from compress.export.targets.target_options import OpenVinoBlock

        asked = getattr(options, "precision", "auto")
        wanted = (asked,) if asked != "auto" else ("bf16", "f32") if has_bf16() else ("f32",)
        own = options.model_dump(exclude_unset=True)
        return {NAMES[one]: OpenVinoBlock.model_validate(own | {"precision": one}) for one in wanted}

    def write(self, model: TaskModel, beside: Path, scheme: Int8 | None, options: TargetBlock) -> Written:
        """Write the converted graph."""
        openvino = optional("openvino", "openvino")
        precision = getattr(options, "precision", "f32")

        from compress.onnx_graph.build import onnx_graph

        if scheme is not None and scheme.activations == "tensor":
            scheme = scheme.model_copy(update={"activations": "token"})
        made = onnx_graph(model, scheme)
        try:
            network = openvino.Core().read_model(made.graph.SerializeToString())
        except RuntimeError as error:
            raise CompressError(f"{model.name}: OpenVINO cannot convert it ({first_line(error)})") from error
        if precision != "f32":
            network.set_rt_info(precision, ["compress", "precision"])
        openvino.save_model(network, str(beside / "openvino_model.xml"), compress_to_fp16=False)
        one_token = made.one_token, made.every_token
        return Written(made.exporter, made.float_bytes, made.opset, made.quantized, *one_token, precision)


def has_bf16() -> bool:
    """Whether OpenVINO computes in bfloat16 on this processor: AVX512_BF16 or AMX."""
    openvino = optional("openvino", "openvino")
    return "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
