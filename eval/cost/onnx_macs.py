"""Multiply-accumulates of an ONNX graph: the shapes of every product are read off while it runs once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

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
_FLOAT, _INT32 = 1, 6
"""``onnx.TensorProto.FLOAT`` and ``INT32``, without loading onnx."""
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
    shapes = dict(zip(names, shapes_of(model, names, [_inputs(model, length)])[0], strict=True)) if names else {}
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


def shapes_of(
    model: onnx.ModelProto, names: Sequence[str], inputs: Sequence[Mapping[str, NDArray[Any]]]
) -> list[list[tuple[int, ...]]]:
    """Return the shapes of values of a graph while it runs in ONNX Runtime, as it stands.

    Args:
        model: A model with its weights loaded; it is left as it is.
        names: The values.
        inputs: What it runs on, once for each.
    """
    import onnx

    probed = onnx.ModelProto()
    probed.CopyFrom(model)
    del probed.graph.output[:]
    for place, name in enumerate(names):
        probed.graph.node.append(onnx.helper.make_node("Shape", [name], [f"shape:{place}"]))
        probed.graph.output.append(onnx.helper.make_tensor_value_info(f"shape:{place}", onnx.TensorProto.INT64, None))
    found = run_plain(probed, None, inputs)
    return [[tuple(int(size) for size in shape) for shape in shapes] for shapes in found]


def run_plain(
    model: onnx.ModelProto, names: Sequence[str] | None, inputs: Sequence[Mapping[str, NDArray[Any]]]
) -> list[list[NDArray[Any]]]:
    """Return values of a graph in ONNX Runtime, as it stands, once for each of several inputs.

    Args:
        model: A model with its weights loaded.
        names: Outputs that are returned; None for all.
        inputs: What it runs on.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [session.run(names, dict(given)) for given in inputs]


def _inputs(model: onnx.ModelProto, length: int) -> dict[str, NDArray[Any]]:
    """Return one row of ``length`` tokens for every input.

    A cache of keys and values, which is of floats, is empty, but for those of a source (``cross.…``).
    """
    found: dict[str, NDArray[Any]] = {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        is_cache = kind.elem_type == _FLOAT and len(kind.shape.dim) == 3
        tokens = 0 if is_cache and not value.name.startswith("cross.") else length
        shape = [1, tokens, *(axis.dim_value for axis in kind.shape.dim[2:])][: len(kind.shape.dim)]
        integers: type = np.int32 if kind.elem_type == _INT32 else np.float32 if is_cache else np.int64
        found[value.name] = np.full(shape, FILL.get(value.name, 0), integers)
    return found
