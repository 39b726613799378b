"""Multiply-accumulates of an ONNX graph: the shapes of every product are read off while it runs once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import onnx

PRODUCTS = (
    "MatMul",
    "MatMulInteger",
    "QLinearMatMul",
    "Gemm",
    "Attention",
    "Conv",
    "ConvInteger",
    "QLinearConv",
    "LSTM",
    "MatMulNBits",
)
OWN = "MatMulNBits"
"""The one of these that is ONNX Runtime's own: a product with packed weights."""
SECOND_FACTOR = {"QLinearMatMul": 3, "QLinearConv": 3}
"""Place of the second factor among the inputs, where it is not the second input."""
HIDING = ("MatMul", "Gemm", "Attention", "LSTM", "GRU", "Einsum")
"""Parts of the names of operators with products inside that are not taken apart here."""
FILL = {"input_ids": 2, "attention_mask": 1}
"""Values of the input that is run; other inputs are 0."""


def onnx_macs(model: onnx.ModelProto, length: int) -> int | None:
    """Return the multiply-accumulates of one input of ``length`` tokens, or None where they cannot be known.

    Args:
        model: A model whose inputs are ``[batch, tokens]``, with its weights loaded.
        length: Tokens of the input; the batch is 1.
    """
    local = {(function.domain, function.name) for function in model.functions}
    nodes = []
    for node in model.graph.node:
        if node.op_type in PRODUCTS and (node.domain in ("", "ai.onnx") or node.op_type == OWN) and node.output[0]:
            nodes.append(node)
        elif (
            any(word in node.op_type for word in HIDING)
            or node.op_type in ("If", "Loop", "Scan")
            or (node.domain, node.op_type) in local
        ):
            return None
    names = sorted({name for node in nodes for name in _operands(node)})
    shapes = dict(zip(names, _run(model, names, length), strict=True)) if names else {}
    return sum(_macs(node, [shapes[name] for name in _operands(node)]) for node in nodes)


def _operands(node: onnx.NodeProto) -> tuple[str, str, str]:
    return node.input[0], node.input[SECOND_FACTOR.get(node.op_type, 1)], node.output[0]


def _macs(node: onnx.NodeProto, shapes: Sequence[tuple[int, ...]]) -> int:
    left, right, out = shapes
    if node.op_type == "Attention":  # each query meets every key, and each output every value
        return (math.prod(left) + math.prod(out)) * right[-2]
    if node.op_type == "LSTM":  # four gates, each a product with the input and with the state
        return math.prod(out) * 4 * (left[-1] + out[-1])
    if "Conv" in node.op_type:
        return math.prod(out) * math.prod(right[1:])
    transposed = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
    return math.prod(out) * left[0 if transposed else -1]


def _run(model: onnx.ModelProto, names: Sequence[str], length: int) -> list[tuple[int, ...]]:
    import onnx
    import onnxruntime

    probed = onnx.ModelProto()
    probed.CopyFrom(model)
    del probed.graph.output[:]
    for place, name in enumerate(names):
        probed.graph.node.append(onnx.helper.make_node("Shape", [name], [f"shape:{place}"]))
        probed.graph.output.append(onnx.helper.make_tensor_value_info(f"shape:{place}", onnx.TensorProto.INT64, None))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(probed.SerializeToString(), options, providers=["CPUExecutionProvider"])
    inputs = {}
    for value in session.get_inputs():
        shape = [1, length, *value.shape[2:]][: len(value.shape)]
        inputs[value.name] = np.full(shape, FILL.get(value.name, 0), np.int32 if "32" in value.type else np.int64)
    return [tuple(int(size) for size in shape) for shape in session.run(None, inputs)]
