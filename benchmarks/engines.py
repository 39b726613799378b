"""The engines that ``benchmarks.inference`` compares: how current tools run a model, and how this one does.

Each is a function from a folder of prepared files to a callable: token ids, mask and types in, logits out. As a
program, ``python -m benchmarks.engines NAME FOLDER THREADS``, this file loads one engine and runs the cases that it
reads. It imports no more than that engine needs, so that the memory of its process is the engine's.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eval.cost.own_memory import peak_bytes

Array = NDArray[Any]
Inputs = Mapping[str, Array]
Run = Callable[[Inputs], Array]


@dataclass(frozen=True)
class Engine:
    """One way to run a model.

    Attributes:
        name: Its name in the table.
        load: Folder of prepared files and threads -> the function that runs it.
        file: The file that it loads, below that folder; the table shows its size. Empty if there is no such file.
        ours: Whether it is part of this project.
        exact: Whether its products are exact on a processor with AVX2 and without VNNI.
        needs: The package it needs.
    """

    name: str
    load: Callable[[Path, int], Run]
    file: str
    ours: bool = False
    exact: bool = True
    needs: str = "onnxruntime"

    @property
    def installed(self) -> bool:
        """Whether the package is there."""
        return find_spec(self.needs) is not None


def _torch(folder: Path, threads: int) -> Any:
    import torch

    from compress import load

    torch.set_num_threads(threads)
    return load(folder / "model").model.eval()


def _through_torch(network: Any) -> Run:
    import torch

    def run(inputs: Inputs) -> Array:
        with torch.inference_mode():
            found = network(**{name: torch.from_numpy(array) for name, array in inputs.items()})
        logits: Array = found.logits.numpy()
        return logits

    return run


def eager(folder: Path, threads: int) -> Run:
    """Torch in eager mode."""
    return _through_torch(_torch(folder, threads))


def compiled(folder: Path, threads: int) -> Run:
    """``torch.compile``."""
    import torch

    return _through_torch(torch.compile(_torch(folder, threads), dynamic=True))


def dynamic(folder: Path, threads: int) -> Run:
    """Torch's own int8: linear layers only, embeddings stay in float32."""
    import torch
    from torch.ao.quantization import quantize_dynamic

    return _through_torch(quantize_dynamic(_torch(folder, threads), {torch.nn.Linear}, dtype=torch.qint8))


def onnx(name: str) -> Callable[[Path, int], Run]:
    """ONNX Runtime with a file of the folder."""

    def load(folder: Path, threads: int) -> Run:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        session = onnxruntime.InferenceSession(str(folder / name), options, providers=["CPUExecutionProvider"])
        taken = {value.name for value in session.get_inputs()}

        def run(inputs: Inputs) -> Array:
            return np.asarray(session.run(None, {key: array for key, array in inputs.items() if key in taken})[0])

        return run

    return load


def openvino(name: str) -> Callable[[Path, int], Run]:
    """OpenVINO with a file of the folder."""

    def load(folder: Path, threads: int) -> Run:
        import openvino as library

        settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
        core = library.Core()
        compiled_model = core.compile_model(core.read_model(str(folder / name)), "CPU", settings)
        request = compiled_model.create_infer_request()
        taken = {value.get_any_name() for value in compiled_model.inputs}

        def run(inputs: Inputs) -> Array:
            found = request.infer({key: array for key, array in inputs.items() if key in taken})
            return np.array(found[0])

        return run

    return load


def runtime(name: str) -> Callable[[Path, int], Run]:
    """This project's runtime with an export below the folder."""

    def load(folder: Path, threads: int) -> Run:
        from compress.export.runtime.answering import Runtime

        export = Runtime(folder / name, threads, spinning=False)
        return lambda inputs: export.forward(dict(inputs))

    return load


FIRST = "1 x 32"
"""The case whose first prediction ends the loading."""

ENGINES = (
    Engine("torch, eager", eager, "model/model.safetensors", needs="torch"),
    Engine("torch.compile", compiled, "model/model.safetensors", needs="torch"),
    Engine("torch, dynamic int8", dynamic, "", exact=False, needs="torch"),
    Engine("ONNX Runtime, fp32", onnx("plain.onnx"), "plain.onnx"),
    Engine("ONNX Runtime, fp32, fused", onnx("fused.onnx"), "fused.onnx"),
    Engine("ONNX Runtime, int8", onnx("int8.onnx"), "int8.onnx", exact=False),
    Engine("ONNX Runtime, int8 of 7 bits", onnx("reduced.onnx"), "reduced.onnx"),
    Engine("ONNX Runtime, uint8", onnx("uint8.onnx"), "uint8.onnx"),
    Engine("ONNX Runtime, int8 of 7 bits, fused", onnx("fused-reduced.onnx"), "fused-reduced.onnx"),
    Engine("optimum's preset for AVX2", onnx("avx2.onnx"), "avx2.onnx"),
    Engine("OpenVINO, fp32", openvino("plain.onnx"), "plain.onnx", needs="openvino"),
    Engine("ours, fp32", runtime("ours-fp32"), "ours-fp32/model.onnx", ours=True),
    Engine("ours, int8", runtime("ours-token"), "ours-token/model.onnx", ours=True),
    Engine("ours, int8, per-tensor", runtime("ours-tensor"), "ours-tensor/model.onnx", ours=True),
    Engine("ours, int8, static", runtime("ours-static"), "ours-static/model.onnx", ours=True),
    Engine(
        "ours, OpenVINO, int8",
        runtime("ours-openvino-token"),
        "ours-openvino-token/openvino_model.bin",
        ours=True,
        needs="openvino",
    ),
    Engine(
        "ours, OpenVINO, int8, static",
        runtime("ours-openvino-static"),
        "ours-openvino-static/openvino_model.bin",
        ours=True,
        needs="openvino",
    ),
)


def peers(folder: Path, config: Any) -> None:
    """Quantize ``plain.onnx`` with ONNX Runtime's tools and optimum's presets, and write the results.

    Args:
        folder: The folder of all these files.
        config: The config of the model, for the fusion of attention.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers.fusion_options import FusionOptions
    from onnxruntime.transformers.optimizer import optimize_model

    plain, fused = str(folder / "plain.onnx"), str(folder / "fused.onnx")
    heads, width = config.num_attention_heads, config.hidden_size
    optimized = optimize_model(
        plain, "bert", num_heads=heads, hidden_size=width, opt_level=0, optimization_options=FusionOptions("bert")
    )
    optimized.save_model_to_file(fused)
    kinds: dict[str, dict[str, Any]] = {
        "int8.onnx": {"weight_type": QuantType.QInt8, "per_channel": True},
        "reduced.onnx": {"weight_type": QuantType.QInt8, "per_channel": True, "reduce_range": True},
        "uint8.onnx": {"weight_type": QuantType.QUInt8, "per_channel": True},
        "avx2.onnx": {"weight_type": QuantType.QUInt8, "per_channel": False},
    }
    import onnx as library

    extra = {"DefaultTensorType": library.TensorProto.FLOAT}
    for name, given in kinds.items():
        quantize_dynamic(plain, str(folder / name), extra_options=extra, **given)
    quantize_dynamic(fused, str(folder / "fused-reduced.onnx"), extra_options=extra, **kinds["reduced.onnx"])


def batches(folder: Path, case: str) -> list[dict[str, Array]]:
    """Return the inputs of a case, which ``benchmarks.inference`` wrote."""
    with np.load(folder / f"{case}.npz") as file:
        count = 1 + max(int(key.split("/")[0]) for key in file)
        names = {key.split("/")[1] for key in file}
        return [{name: file[f"{number}/{name}"] for name in names} for number in range(count)]


def serve(name: str, folder: Path, threads: int) -> None:
    """Load an engine and run cases: lines ``[case, repeat]`` in; ``seconds`` and the highest ``megabytes`` out.

    With ``repeat`` 0 it writes the logits of the case to ``NAME.npz`` in the folder.
    """
    run = next(engine for engine in ENGINES if engine.name == name).load(folder, threads)
    run(batches(folder, FIRST)[0])
    print(json.dumps({"seconds": 0.0, "megabytes": peak_bytes() / 1e6}), flush=True)
    read: dict[str, list[dict[str, Array]]] = {}
    for line in sys.stdin:
        case, repeat = json.loads(line)
        if case not in read:
            read[case] = batches(folder, case)
        todo = read[case]
        if not repeat:
            np.savez(folder / f"{name}.npz", *[run(batch) for batch in todo])
        begun = time.perf_counter()
        for _ in range(repeat):
            for batch in todo:
                run(batch)
        seconds = (time.perf_counter() - begun) / max(repeat, 1)
        print(json.dumps({"seconds": seconds, "megabytes": peak_bytes() / 1e6}), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
