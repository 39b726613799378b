"""ONNX Runtime: the graph of torch's exporter, fused and quantized by ONNX Runtime's own tools and by optimum."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engines.engine import Array, Engine, Files, Inputs, Run
from benchmarks.engines.environment import Environment
from eval.cost.machine import cpu_features

FILE = "model.onnx"


class OnnxRuntime(Engine):
    """The graph as it was exported."""

    name = "ONNX Runtime, float32"
    packages: tuple[str, ...] = ("onnxruntime",)
    settings: tuple[tuple[str, str], ...] = ()

    def load(self, files: Files, place: Path, threads: int) -> Run:
        """Open a session; idle threads do not spin, as other engines run then."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        for key, value in (("session.intra_op.allow_spinning", "0"), *self.settings):
            options.add_session_config_entry(key, value)
        file = str(self.network(files, place))
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        taken = {value.name for value in session.get_inputs()}

        def run(inputs: Inputs) -> Array:
            return np.asarray(session.run(None, {key: array for key, array in inputs.items() if key in taken})[0])

        return run

    def network(self, files: Files, place: Path) -> Path:
        """The graph that all of them start from."""
        return files.graph


class Fused(OnnxRuntime):
    """After ONNX Runtime's optimizer for transformers."""

    name = "ONNX Runtime, float32, fused"

    def prepare(self, files: Files, place: Path) -> None:
        """Fuse attention, GELU and layer norms."""
        fuse(files, place / FILE)

    def network(self, files: Files, place: Path) -> Path:
        """The fused graph."""
        return place / FILE


class DynamicInt8(OnnxRuntime):
    """``quantize_dynamic`` with per-channel scales: the lines that everybody knows."""

    name = "ONNX Runtime, int8"
    saturates = True
    fused = False
    how: tuple[tuple[str, Any], ...] = ()

    def prepare(self, files: Files, place: Path) -> None:
        """Quantize the graph, or the fused one."""
        import onnx
        from onnxruntime.quantization import QuantType, quantize_dynamic

        graph = place / "float32.onnx"  # a copy of its own, for the tool writes beside what it reads
        if self.fused:
            fuse(files, graph)
        else:
            shutil.copy(files.graph, graph)
        extra = {"DefaultTensorType": onnx.TensorProto.FLOAT}
        how = {"weight_type": QuantType.QInt8, "per_channel": True, **dict(self.how)}
        quantize_dynamic(str(graph), str(place / FILE), extra_options=extra, **how)

    def network(self, files: Files, place: Path) -> Path:
        """The quantized graph."""
        return place / FILE


class Int8Of7Bits(DynamicInt8):
    """With weights of 7 bits, whose sums do not saturate."""

    name = "ONNX Runtime, int8 of 7 bits"
    saturates = False
    how = (("reduce_range", True),)


class FusedInt8Of7Bits(Int8Of7Bits):
    """The same after the optimizer."""

    name = "ONNX Runtime, int8 of 7 bits, fused"
    fused = True


class Bf16(OnnxRuntime):
    """Float32 products in bfloat16."""

    name = "ONNX Runtime, bf16"
    settings = (("mlas.enable_gemm_fastmath_arm64_bfloat16", "1"),)

    def absent(self) -> str:
        """Everywhere but on Arm."""
        return "" if "asimddp" in cpu_features() else "it has kernels for bfloat16 on Arm alone"


class Float16(Fused):
    """The fused graph in float16."""

    name = "ONNX Runtime, float16"

    def absent(self) -> str:
        """Everywhere but on Arm."""
        return (
            "" if "asimddp" in cpu_features() else "it has kernels for float16 on Arm alone, elsewhere casts to float32"
        )

    def prepare(self, files: Files, place: Path) -> None:
        """Convert the fused graph."""
        fuse(files, place / FILE, float16=True)


class OptimumPreset(OnnxRuntime):
    """optimum's exporter, and its preset of dynamic int8 for this processor; for AVX2 that is u8 x u8, exact."""

    name = "optimum, int8 preset"
    environment = Environment("optimum", ("optimum-onnx[onnxruntime]==0.1.0", "transformers==4.57.6"))
    packages = ("optimum-onnx", "onnxruntime", "transformers")

    def prepare(self, files: Files, place: Path) -> None:
        """Export and quantize."""
        from optimum.onnxruntime import ORTModelForSequenceClassification, ORTQuantizer
        from optimum.onnxruntime.configuration import AutoQuantizationConfig as Presets

        has = set(cpu_features())
        presets = (("asimddp", Presets.arm64), ("avx512_vnni", Presets.avx512_vnni), ("avx512f", Presets.avx512))
        preset = next((preset for feature, preset in presets if feature in has), Presets.avx2)
        model = ORTModelForSequenceClassification.from_pretrained(files.model, export=True)
        ORTQuantizer.from_pretrained(model).quantize(
            save_dir=place, quantization_config=preset(is_static=False, per_channel=True)
        )

    def network(self, files: Files, place: Path) -> Path:
        """The quantized graph."""
        return place / "model_quantized.onnx"


def fuse(files: Files, to: Path, float16: bool = False) -> None:
    """Write the graph after ONNX Runtime's optimizer for transformers."""
    import json

    from onnxruntime.transformers.fusion_options import FusionOptions
    from onnxruntime.transformers.optimizer import optimize_model

    config = json.loads((files.model / "config.json").read_text(encoding="utf-8"))
    shape = {"num_heads": config["num_attention_heads"], "hidden_size": config["hidden_size"]}
    options = FusionOptions("bert")
    optimized = optimize_model(str(files.graph), "bert", opt_level=0, optimization_options=options, **shape)
    if float16:
        optimized.convert_float_to_float16(keep_io_types=True)
    optimized.save_model_to_file(str(to))
