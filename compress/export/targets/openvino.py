"""A model in OpenVINO's own form: the graph in ``openvino_model.xml``, its weights in ``openvino_model.bin``.

With early exits it is several networks, one for the layers up to each exit: the second one is
``openvino_model.exit2.xml``.
"""

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

    Networks of early exits run one after another, each on the rows that are not certain enough after the one before.

    A request of OpenVINO answers one caller at a time, in memory that the next one writes over, so threads that share
    an engine take turns.

    Attributes:
        session: OpenVINO's compiled model, the first of several.
        stated: The precision that the file states, ``bf16`` or ``f32``; files from before it was stated are ``f32``.
        precision: The precision that it runs in.
    """

    def __init__(self, file: Path, threads: int, spinning: bool, streams: int = 1) -> None:
        import threading
        import warnings

        import openvino

        self.file, self.turn = file, threading.Lock()
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
        if streams > 1:  # one thread each
            settings["NUM_STREAMS"] = streams
        self.layers, self.speed = [], 0.0
        self.parts: list[tuple[Any, list[str], list[str]]] = []
        while not self.parts or "states" in self.parts[-1][2]:  # which another network goes on with
            if self.parts:
                network = core.read_model(str(file.with_suffix(f".exit{len(self.parts) + 1}{file.suffix}")))
            if network.has_rt_info("layers"):
                self.layers.append(int(network.get_rt_info("layers").value))
                self.speed = float(network.get_rt_info("speed").value)
            request = core.compile_model(network, "CPU", settings).create_infer_request()
            takes, gives = ([each.get_any_name() for each in ends] for ends in (network.inputs, network.outputs))
            self.parts.append((request, takes, gives))
        self.session = self.parts[0][0].get_compiled_model()

    def for_threads(self, count: int) -> list[OpenVinoEngine]:
        """Return an engine for each of some threads that call them at once; they share the compiled networks."""
        import copy
        import threading

        engines = [OpenVinoEngine(self.file, count, False, count)]
        while len(engines) < count:
            engines.append(copy.copy(engines[0]))
            engines[-1].turn = threading.Lock()
            engines[-1].parts = [
                (request.get_compiled_model().create_infer_request(), *names) for request, *names in engines[0].parts
            ]
        return engines

    def run(self, inputs: Inputs) -> dict[str, Array]:
        """Return the outputs by name; with early exits ``logits`` and the ``layers`` that each row ran through."""
        with self.turn:
            return self._run(inputs)

    def _run(self, inputs: Inputs) -> dict[str, Array]:
        left = dict(inputs)
        speed = np.float32(left.pop("speed", self.speed))
        found = self.infer(0, left)
        if not self.layers:
            return {name: np.array(array) for name, array in found.items()}
        logits, rows = np.array(found["logits"]), np.arange(len(found["logits"]))
        layers = np.full(len(rows), self.layers[0])
        for part in range(1, len(self.parts)):
            on = (found["uncertainty"] > speed) | (speed <= 0)
            if not on.any():
                break
            left["hidden"] = found["states"]
            if not on.all():
                rows, left = rows[on], {name: array[on] for name, array in left.items()}
            found = self.infer(part, left)
            logits[rows], layers[rows] = found["logits"], self.layers[part]
        return {"logits": logits, "layers": layers}

    def infer(self, part: int, given: dict[str, Array]) -> dict[str, Array]:
        """Return what one of the networks gives, until it runs again, for what it takes of what is given."""
        request, takes, gives = self.parts[part]
        found = request.infer({name: given[name] for name in takes})
        return {name: found[place] for place, name in enumerate(gives)}


class OpenVinoTarget(Target):
    """Our ONNX graph, converted; with early exits, that of each exit by itself, for the engine to run as needed.

    The exits of layers that share their weights, as ALBERT's do, then have a copy each.

    OpenVINO has no 8-bit products with per-tensor ranges, so where the scheme asks for them each token gets a range of
    its own.
    """

    name = "openvino"
    summary = "For OpenVINO."
    needs = ("onnx", "openvino")
    extra = "openvino"
    hub_library = "openvino"
    adds = "exports for OpenVINO, and their runtime"
    library = Library(
        "OpenVINO", "openvino", ("openvino_model.xml", "openvino_model.bin"), OpenVinoEngine, "openvino_model.exit*"
    )
    activations = ("token", "static")
    tuned = True
    speed_is_input = True

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
        """Write the converted graph, or graphs."""
        openvino = optional("openvino", "openvino")
        precision = getattr(options, "precision", "f32")

        from compress.onnx_graph.build import onnx_graph

        if scheme is not None and scheme.activations == "tensor":
            scheme = scheme.model_copy(update={"activations": "token", "by_token": ()})
        made = onnx_graph(model, scheme, merged=False)  # it fuses attention by itself
        stops = getattr(model.model, "stops", [])
        for number, part in enumerate(made.parts, start=1):
            try:
                network = openvino.Core().read_model(part.SerializeToString())
            except RuntimeError as error:
                raise CompressError(f"{model.name}: OpenVINO cannot convert it ({first_line(error)})") from error
            if stops:
                network.set_rt_info(str(stops[number - 1]), "layers")
                network.set_rt_info(str(model.model.config.speed), "speed")
            file = "openvino_model.xml" if number == 1 else f"openvino_model.exit{number}.xml"
            if precision != "f32":
                network.set_rt_info(precision, ["compress", "precision"])
            openvino.save_model(network, str(beside / file), compress_to_fp16=False)
        one_token = made.one_token, made.every_token
        return Written(made.exporter, made.float_bytes, made.opset, made.quantized, *one_token, precision)


def has_bf16() -> bool:
    """Whether OpenVINO computes in bfloat16 on this processor: AVX512_BF16 or AMX."""
    openvino = optional("openvino", "openvino")
    return "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
