"""All engines, in the order of the table."""

from __future__ import annotations

from benchmarks.engines import ctranslate2, onnx_runtime, openvino, ours, pytorch
from benchmarks.engines.engine import Engine

REFERENCE = pytorch.Eager
"""What predictions are compared with."""
ENGINES: tuple[type[Engine], ...] = (
    REFERENCE,
    pytorch.Compiled,
    pytorch.EagerBf16,
    pytorch.CompiledBf16,
    pytorch.DynamicInt8,
    pytorch.CompiledInt8,
    onnx_runtime.OnnxRuntime,
    onnx_runtime.Fused,
    onnx_runtime.Bf16,
    onnx_runtime.Float16,
    onnx_runtime.DynamicInt8,
    onnx_runtime.Int8Of7Bits,
    onnx_runtime.FusedInt8Of7Bits,
    onnx_runtime.OptimumPreset,
    openvino.OpenVinoFloat32,
    openvino.OpenVino,
    openvino.Nncf,
    ctranslate2.CTranslate2,
    ours.Ours,
    ours.OursInt8,
    ours.OursInt8WithoutData,
    ours.OursOpenVino,
    ours.OursOpenVinoInt8,
)
