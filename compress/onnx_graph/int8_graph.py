"""8-bit weights and 8-bit products for an ONNX graph, in standard operators that any runtime knows."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from compress.modules.int8_scheme import (
    LEAST_RANGE,
    LEVELS,
    MIDDLE,
    Int8,
    affine,
    is_excluded,
    quantize_rows,
)
from compress.onnx_graph.rewrites import Model, Node, attributes, einsum_as_product, module_of, set_nodes, set_weights

Array = NDArray[Any]
SMALL = 16
"""Matrices with fewer rows or columns stay in float: token types and the last layer of a classifier save nothing."""
GELU_LEAST = -0.17
"""No value of GELU is less: its minimum is -0.16997 (exact) or -0.17004 (by tanh)."""
AXES_ARE_INPUTS = 18
"""The opset from which ReduceMax and ReduceMin take their axes as an input."""


def quantize_graph(model: Model, scheme: Int8) -> dict[str, Any]:
    """Quantize linear layers and embedding tables of a tidy float32 graph, in place.

    With per-token ranges, and x the activation of a token:
    ``s = max|x| / 127``, ``u = round(x / s) + 128``, ``y = s * scale * sum((u - 128) * q)``, the sum in int32; what
    GELU gives is raised by 0.17 first, ``s = max(x) / 255``, ``u = round(x / s)``, and the bias takes that away again.
    With per-tensor ranges, ``u``, ``s`` and the zero point come from ``DynamicQuantizeLinear`` but where the scheme
    names a module ``by_token``; with static ranges
    they follow from ``affine``, and a symmetric range never gives 0, that is -128.

    Products stand in the graph as MatMul between two DequantizeLinear, which ONNX Runtime and OpenVINO run as one
    operator on integers and any other runtime in float, with the same result; after ``DynamicQuantizeLinear`` they
    are MatMulInteger, which ONNX Runtime merges with it.

    Args:
        model: A graph as ``compress.onnx_graph.rewrites.tidy`` leaves it.
        scheme: What becomes 8-bit, and how.

    Returns:
        How many ``linear`` layers and embedding ``tables`` became 8-bit, and in ``float`` the modules with a matrix
        that did not.
    """
    return Quantizer(model, scheme).run()


def linear_nodes(model: Model) -> list[tuple[Node, Array]]:
    """Return the linear layers of a tidy float32 graph that are worth 8 bits, each with its matrix."""
    quantizer = Quantizer(model, Int8())
    found = [(node, quantizer._linear(node)) for node in model.graph.node]
    return [(node, linear.matrix) for node, linear in found if linear and min(linear.matrix.shape) >= SMALL]


@dataclass(frozen=True)
class _Linear:
    """``y = x W + bias``; x loses its last ``axes`` axes, and axes of ``shape`` take their place."""

    weight: str
    matrix: Array
    batch_axes: int = 0
    axes: int = 1
    shape: tuple[int, ...] = ()
    bias: str = ""


class Quantizer:
    """One quantization of one graph."""

    def __init__(self, model: Model, scheme: Int8) -> None:
        self.graph, self.scheme = model.graph, scheme
        self.opset = max(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
        weights = (weight for weight in model.graph.initializer if weight.data_type == onnx.TensorProto.FLOAT)
        self.weights = {weight.name: weight for weight in weights if len(weight.dims) > 1}
        self.initial = {weight.name for weight in model.graph.initializer}
        self.made_by = {name: node for node in model.graph.node for name in node.output}
        self.nodes: list[Node] = []
        self.arrays: dict[str, Array] = {}
        self.activations: dict[str, tuple[str, str, str]] = {}
        self.in_float: set[str] = set()
        self.smoothed: dict[str, str] = {}

    def run(self) -> dict[str, Any]:
        """Rewrite the graph; return what ``quantize_graph`` does."""
        facts: dict[str, Any] = {"linear": 0, "tables": 0, "float": []}
        self._round_outputs()
        for node in list(self.graph.node):
            linear = self._linear(node)
            if not self._is_excluded(node) and self._is_table(node):
                self._look_up(node)
                facts["tables"] += 1
            elif linear is not None and self._is_worth(node, linear):
                self._multiply(node, linear)
                facts["linear"] += 1
            else:
                self.nodes.append(node)
                if linear is not None or node.op_type == "LSTM":
                    facts["float"].append(module_of(node))
        set_nodes(self.graph, self.nodes)
        set_weights(self.graph, self.arrays)
        return facts

    def _is_excluded(self, node: Node) -> bool:
        return any(is_excluded(name, self.scheme.exclude) for name in _names(node))

    def _is_worth(self, node: Node, linear: _Linear) -> bool:
        if self._is_excluded(node):
            return False
        if self.scheme.activations == "static":
            return self._known(self.scheme.ranges, node) is not None
        return bool(min(linear.matrix.shape) >= SMALL)

    def _known(self, values: Mapping[str, Any], node: Node) -> Any:
        """Return what is known of a node by its own name or by that of its module."""
        return next((values[name] for name in (node.name, *_names(node)) if name in values), None)

    def _round_outputs(self) -> None:
        """Put Clip, QuantizeLinear and DequantizeLinear after products, bias included, whose outputs are rounded."""
        if not self.scheme.outputs:
            return
        ends = {node.output[0]: node for node in self.graph.node if self._linear(node) is not None}
        for node in self.graph.node:  # a bias that stands apart
            before = next((name for name in node.input if name in ends), "")
            if node.op_type == "Add" and before and module_of(ends[before]) == module_of(node):
                del ends[before]
                ends[node.output[0]] = node
        kept = []
        for node in self.graph.node:
            kept.append(node)
            out = node.output[0]
            largest = self._known(self.scheme.outputs, node) if out in ends else None
            if largest is not None:
                node.output[0] = f"{out}_exact"
                start = len(self.nodes)
                scale, zero = self._fixed(f"{out}_rounding", (-largest, largest))
                uint8 = self._to_uint8(node.output[0], f"{out}_rounded", (-largest, largest), scale, zero)
                self._add("DequantizeLinear", [uint8, scale, zero], out)
                kept += self.nodes[start:]
                del self.nodes[start:]
        set_nodes(self.graph, kept)

    def _is_table(self, node: Node) -> bool:
        table = self.weights.get(node.input[0]) if node.op_type == "Gather" and self.scheme.embeddings else None
        return table is not None and not attributes(node).get("axis", 0) and min(table.dims) >= SMALL

    def _linear(self, node: Node) -> _Linear | None:
        if node.op_type not in ("MatMul", "Gemm", "Einsum") or len(node.input) < 2 or node.input[1] not in self.weights:
            return None
        name, given = node.input[1], attributes(node)
        matrix = onnx.numpy_helper.to_array(self.weights[name])
        if node.op_type == "Einsum":
            equation = given["equation"].decode()
            found = einsum_as_product(equation, matrix)
            if found is None:
                return None
            return _Linear(name, found[0], len(equation.partition(",")[0]) - found[1], *found[1:])
        if node.op_type == "Gemm":
            plain = given.get("alpha", 1.0) == given.get("beta", 1.0) == 1.0 and not given.get("transA", 0)
            bias = node.input[2] if len(node.input) > 2 else ""
            return _Linear(name, matrix.T if given.get("transB", 0) else matrix, bias=bias) if plain else None
        return _Linear(name, matrix) if matrix.ndim == 2 else None

    def _look_up(self, node: Node) -> None:
        table, out = node.input[0], node.output[0]
        if f"{table}_rows" not in self.arrays:
            by_row = self.scheme.tables == "row"
            rows, scale = quantize_rows(onnx.numpy_helper.to_array(self.weights[table]), by_row)
            self.arrays |= {f"{table}_rows": rows, f"{table}_scale": scale}
        found = self._add("Gather", [f"{table}_rows", node.input[1]], f"{out}_rows", node.name)
        scales = f"{table}_scale"
        if self.scheme.tables == "row":
            scales = self._add("Gather", [scales, node.input[1]], f"{out}_row_scales")
        self._add("Mul", [self._as_float(found), scales], out)

    def _multiply(self, node: Node, linear: _Linear) -> None:
        x, out = node.input[0], node.output[0]
        if linear.axes > 1:
            x = self._reshape(x, f"{out}_flat", (0,) * linear.batch_axes + (-1,))
        weight, matrix = f"{linear.weight}_int8", linear.matrix
        smooth = self._known(self.scheme.smooth, node)
        if smooth is not None:
            x, weight, matrix = self._smoothed(x, weight, matrix, np.array(smooth, np.float32))
        if weight not in self.arrays:
            matrix, scales = self.scheme.quantized(matrix, self._known(self.scheme.codes, node))
            self.arrays |= {weight: np.ascontiguousarray(matrix), f"{weight}_scale": scales}
        bias, has_axes = self._bias(node, linear, self._correction(node, x, weight)), len(linear.shape) > 1
        y = self._product(node, x, weight, f"{out}_product" if bias or has_axes else out)
        if bias:
            y = self._add("Add", [y, bias], f"{out}_biased" if has_axes else out)
        if has_axes:
            self._reshape(y, out, (0,) * linear.batch_axes + linear.shape)

    def _correction(self, node: Node, x: str, weight: str) -> Array | None:
        """Return what is added to each output: the mean that rounding takes from it, or what its raised input adds."""
        known = self._known(self.scheme.bias, node)
        if self._ranges(node) != "token" or self._least(x) is None:
            return None if known is None else np.array(known)
        added: Array = GELU_LEAST * self.arrays[weight].sum(axis=0, dtype=np.int64) * self.arrays[f"{weight}_scale"]
        return added

    def _bias(self, node: Node, linear: _Linear, correction: Array | None) -> str:
        """Return what is added to a product, if anything; a correction moves into the bias that the graph adds."""
        if correction is None:
            return linear.bias
        values = {weight.name: weight for weight in self.graph.initializer if [*weight.dims] == [len(correction)]}
        readers = [reader for reader in self.graph.node if node.output[0] in reader.input]
        is_sum = [reader.op_type for reader in readers] == ["Add"]
        apart = next((name for name in readers[0].input if name in values), "") if is_sum else ""
        known = values.get(linear.bias or apart)
        if linear.bias and known is None:  # it is computed
            more = self._constant(f"{node.output[0]}_correction", correction.astype(np.float32))
            return self._add("Add", [linear.bias, more], f"{node.output[0]}_bias")
        own = 0.0 if known is None else onnx.numpy_helper.to_array(known)
        corrected = self._constant(f"{node.output[0]}_bias", (own + correction).astype(np.float32))
        if linear.bias or not apart:
            return corrected
        readers[0].input[list(readers[0].input).index(apart)] = corrected
        return ""

    def _product(self, node: Node, x: str, weight: str, last: str) -> str:
        """Add ``last = x W`` with the product in integers; return ``last``."""
        how, out = self._ranges(node), node.output[0]
        quantized, scale, zero = self._activation(x, how, self._known(self.scheme.ranges, node))
        if how == "tensor":
            y = self._as_float(self._add("MatMulInteger", [quantized, weight, zero], f"{out}_int32", node.name))
            # Multiplied in this order, ONNX Runtime makes one operator of them all.
            return self._add("Mul", [y, self._add("Mul", [scale, f"{weight}_scale"], f"{out}_both")], last)
        back = self._back(weight, [f"{weight}_scale"], axis=min(self.arrays[f"{weight}_scale"].ndim, 1))
        # ONNX Runtime would merge a Gemm's product and bias into a Gemm in float, so a factor stands between them.
        if how == "static" and node.op_type != "Gemm":
            return self._add("MatMul", [self._back(quantized, [scale, zero]), back], last, node.name)
        steps = self._back(quantized, [self._constant("one", np.float32(1)), zero])
        return self._add("Mul", [self._add("MatMul", [steps, back], f"{out}_of_steps", node.name), scale], last)

    def _back(self, name: str, of: list[str], **given: Any) -> str:
        """Return the name of 8-bit numbers as float; they become float once for all that reads them."""
        back = f"{name}_times_{of[0]}"
        if back not in self.in_float:
            self.in_float.add(self._add("DequantizeLinear", [name, *of], back, **given))
        return back

    def _ranges(self, node: Node) -> str:
        """Return where the input of a product has its range from: ``token``, ``tensor`` or ``static``."""
        by_token = any(is_excluded(name, self.scheme.by_token) for name in _names(node))
        return "token" if by_token else self.scheme.activations

    def _activation(self, x: str, how: str, given: tuple[float, float] | None) -> tuple[str, str, str]:
        """Return the names of ``x`` as uint8, of its scale and of its zero point; each ``x`` is quantized once."""
        key = f"{x} {how} {given}"
        if key not in self.activations:
            if how == "static" and given is not None:
                number = sum(known.startswith(f"{x} ") for known in self.activations)
                name = f"{x}_{number}" if number else x
                scale, zero = self._fixed(name, given)
                self.activations[key] = (self._to_uint8(x, name, given, scale, zero), scale, zero)
            else:
                self.activations[key] = (self._by_token if how == "token" else self._by_tensor)(x)
        return self.activations[key]

    def _fixed(self, name: str, given: tuple[float, float]) -> tuple[str, str]:
        """Return the names of scale and zero point of a fixed range."""
        scale, zero = affine(*given)
        return (
            self._constant(f"{name}_fixed_scale", np.float32(scale)),
            self._constant(f"{name}_fixed_zero", np.uint8(zero)),
        )

    def _to_uint8(self, x: str, name: str, given: tuple[float, float], scale: str, zero: str) -> str:
        if given[0] == -given[1]:  # uint8 has one step more below than above, which is not used
            ends = [self._constant(f"{name}_{end}", np.float32(value)) for end, value in zip("ab", given, strict=True)]
            x = self._add("Clip", [x, *ends], f"{name}_clipped")
        return self._add("QuantizeLinear", [x, scale, zero], f"{name}_uint8")

    def _smoothed(self, x: str, weight: str, matrix: Array, smooth: Array) -> tuple[str, str, Array]:
        """Divide the channels of ``x`` and multiply the rows of its matrix by the same numbers."""
        digest = hashlib.sha256(smooth.tobytes()).hexdigest()[:16]
        key = f"{x}_smooth_{digest}"
        if key not in self.smoothed:
            self.smoothed[key] = x if self._into_norm(x, smooth) else self._divided(x, key, smooth)
        return self.smoothed[key], f"{weight}_smooth_{digest}", matrix * smooth[:, None]

    def _divided(self, x: str, name: str, smooth: Array) -> str:
        return self._add("Mul", [x, self._constant(f"{name}_by", 1 / smooth)], name)

    def _into_norm(self, x: str, smooth: Array) -> bool:
        """Divide gain and bias of the LayerNorm that gives ``x``, if all that reads it is smoothed alike."""
        norm = next((n for n in self.nodes if x in n.output and n.op_type == "LayerNormalization"), None)
        readers = [node for node in self.graph.node if x in node.input]
        pairs = [(node, self._linear(node)) for node in readers]
        in_8_bits = all(linear is not None and self._is_worth(node, linear) for node, linear in pairs)
        factors = {self._known(self.scheme.smooth, node) for node in readers}
        if norm is None or len(factors) > 1 or None in factors or not in_8_bits:
            return False
        values = {weight.name: weight for weight in self.graph.initializer}
        values |= {n.output[0]: attributes(n).get("value") for n in self.graph.node if n.op_type == "Constant"}
        arrays = {name: values.get(name) for name in norm.input[1:]}
        if None in arrays.values():
            return False
        for place, (name, value) in enumerate(arrays.items(), start=1):
            changed = onnx.numpy_helper.to_array(value) / smooth
            norm.input[place] = self._constant(f"{x}_{name}_smooth", changed.astype(np.float32))
        return True

    def _least(self, x: str) -> float | None:
        """Return the least value that ``x`` can have if it is GELU: one operator, or ``h (1 + erf(h / √2)) / 2``."""
        if x not in self.made_by or self.made_by[x].op_type not in ("Gelu", "Mul"):
            return None
        inner: dict[str, str] = {}
        leaves, reached = set(), [x]
        while reached:
            name = reached.pop()
            operator = self.made_by[name].op_type if name in self.made_by else ""
            if operator in ("Erf", "Mul", "Div", "Add"):
                inner[name] = operator
                reached += self.made_by[name].input
            elif operator != "Constant" and name not in self.initial:
                leaves.add(name)
        count = Counter(inner.values())
        known = count["Erf"] == 1 and count["Mul"] + count["Div"] == 3 and len(leaves) == 1
        return GELU_LEAST if known or self.made_by[x].op_type == "Gelu" else None

    def _by_token(self, x: str) -> tuple[str, str, str]:
        if (least := self._least(x)) is not None:
            raised = self._add("Add", [x, self._constant("raised_by", np.float32(-least))], f"{x}_raised")
            largest = self._over_last_axis("ReduceMax", raised)
            scale = self._add("Mul", [largest, self._constant("step_of_255", np.float32(1 / 255))], f"{x}_scale")
            return self._steps(raised, scale, self._constant("none", np.uint8(0))), scale, "none"
        depth = self._add("Neg", [self._over_last_axis("ReduceMin", x)], f"{x}_depth")
        positive = self._constant("least_range", np.float32(LEAST_RANGE))
        largest = self._add("Max", [self._over_last_axis("ReduceMax", x), depth, positive], f"{x}_largest")
        scale = self._add("Mul", [largest, self._constant("step", np.float32(1 / LEVELS))], f"{x}_scale")
        zero = self._constant("middle", np.uint8(MIDDLE))
        return self._steps(x, scale, zero), scale, zero

    def _steps(self, x: str, scale: str, zero: str) -> str:
        steps = self._add("Mul", [x, self._add("Reciprocal", [scale], f"{x}_per_step")], f"{x}_steps")
        return self._add("QuantizeLinear", [steps, self._constant("one", np.float32(1)), zero], f"{x}_uint8")

    def _by_tensor(self, x: str) -> tuple[str, str, str]:
        names = (f"{x}_of_all_uint8", f"{x}_of_all_scale", f"{x}_of_all_zero")
        self.nodes.append(onnx.helper.make_node("DynamicQuantizeLinear", [x], names))
        return names

    def _over_last_axis(self, operator: str, x: str) -> str:
        if self.opset >= AXES_ARE_INPUTS:
            return self._add(operator, [x, self._constant("last_axis", np.array([-1]))], f"{x}_{operator}", keepdims=1)
        return self._add(operator, [x], f"{x}_{operator}", axes=[-1], keepdims=1)

    def _as_float(self, x: str) -> str:
        return self._add("Cast", [x], f"{x}_float", to=onnx.TensorProto.FLOAT)

    def _reshape(self, x: str, out: str, shape: tuple[int, ...]) -> str:
        return self._add("Reshape", [x, self._constant(f"{out}_shape", np.array(shape, dtype=np.int64))], out)

    def _constant(self, name: str, value: Any) -> str:
        self.arrays.setdefault(name, np.asarray(value))
        return name

    def _add(self, operator: str, inputs: list[str], out: str, name: str = "", **given: Any) -> str:
        self.nodes.append(onnx.helper.make_node(operator, inputs, [out], name, **given))
        return out


def _names(node: Node) -> tuple[str, str]:
    """Return the module of a node, and what it is called where it runs first; later runs end in _1, _2 and so on."""
    module = module_of(node)
    return module, re.sub(r"_\d+$", "", module)
