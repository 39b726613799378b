"""OpenVINO with the graph of torch's exporter, and with NNCF's post-training int8.

A stream goes through its queue of requests with the hint for throughput, as its guide to optimization has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engines.engine import Array, Engine, Files, Inputs, Run, without_bf16
from benchmarks.engines.environment import Environment

OPENVINO = Environment("openvino", ("openvino==2026.4.1",))
"""That of our own exports for OpenVINO too, so that all of them run in the same version."""


class OpenVino(Engine):
    """The graph as a user gives it: where the processor has bfloat16, OpenVINO computes in it."""

    name = "OpenVINO, as it is"
    environment = OPENVINO
    packages: tuple[str, ...] = ("openvino",)
    settings: tuple[tuple[str, str], ...] = ()

    def absent(self) -> str:
        """Where that is float32."""
        reason = without_bf16()
        return f"{reason}, so it is the same as float32" if reason else ""

    def load(self, files: Files, place: Path, threads: int) -> Run:
        """Compile for latency, with so many threads."""
        import openvino as library

        core = library.Core()
        network = core.read_model(str(self.file(files, place)))

        def compiled(hint: str) -> Any:
            settings = {"PERFORMANCE_HINT": hint, "INFERENCE_NUM_THREADS": threads, **dict(self.settings)}
            return core.compile_model(network, "CPU", settings)

        self.queue = cache(lambda: library.AsyncInferQueue(compiled("THROUGHPUT")))
        self.taken = {name for value in network.inputs for name in value.get_names()}
        request = compiled("LATENCY").create_infer_request()
        return lambda inputs: np.array(request.infer(self.given(inputs))[0])

    def given(self, inputs: Inputs) -> dict[str, Array]:
        """Return the inputs that the network has."""
        return {name: array for name, array in inputs.items() if name in self.taken}

    def stream(self, run: Run, batches: Sequence[Inputs]) -> list[Array]:
        """Give the batches of a stream to a queue, which runs several at a time."""
        found: list[Array] = [np.empty(0)] * len(batches)

        def keep(request: Any, number: int) -> None:
            found[number] = np.array(request.get_output_tensor(0).data)

        queue: Any = self.queue()
        queue.set_callback(keep)
        for number, inputs in enumerate(batches):
            queue.start_async(self.given(inputs), number)
        queue.wait_all()
        return found

    def file(self, files: Files, place: Path) -> Path:
        """Return what OpenVINO reads."""
        return files.graph

    def network(self, files: Files, place: Path) -> Path:
        """The graph that the peers start from."""
        return files.graph


class OpenVinoFloat32(OpenVino):
    """In float32 on every processor."""

    name = "OpenVINO, float32"
    settings = (("INFERENCE_PRECISION_HINT", "f32"),)

    def absent(self) -> str:
        """It is measured everywhere."""
        return ""


class Nncf(OpenVino):
    """NNCF's post-training quantization with its preset for transformers; what stays in float is as OpenVINO likes."""

    name = "NNCF, int8 in OpenVINO"
    environment = Environment("nncf", (*OPENVINO.requirements, "nncf==3.4.0"))
    packages = ("openvino", "nncf")

    def absent(self) -> str:
        """It is measured everywhere."""
        return ""

    def prepare(self, files: Files, place: Path) -> None:
        """Quantize with the calibration texts."""
        import nncf
        import openvino as library

        texts = [
            {name: row[None] for name, row in zip(batch, rows, strict=True)}
            for batch in files.batches("calibration")
            for rows in zip(*batch.values(), strict=True)
        ]
        graph = library.Core().read_model(str(files.graph))
        quantized = nncf.quantize(
            graph, nncf.Dataset(texts), model_type=nncf.ModelType.TRANSFORMER, subset_size=len(texts)
        )
        library.save_model(quantized, str(place / "model.xml"), compress_to_fp16=False)

    def file(self, files: Files, place: Path) -> Path:
        """Return the quantized network."""
        return place / "model.xml"

    def network(self, files: Files, place: Path) -> Path:
        """Its two files."""
        return place
