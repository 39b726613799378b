"""Products of the same input as one: queries, keys and values of a layer need one matrix product instead of three.

Each column of the joined product is computed as before, so the answers are the same numbers. What is saved is the start
of operators, which is what single short texts wait for. OpenVINO, which fuses attention by itself, is slower with it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from compress.onnx_graph.rewrites import Model, Node, attributes, reads, set_nodes, set_weights
from compress.onnx_graph.static_shapes import drop_unused

Array = NDArray[Any]
PRODUCTS = ("MatMul", "MatMulInteger")
OF_ROWS = ("Mul", "Max", "Neg", "Reciprocal", "Cast")
"""Operators that keep one number a row if each input has one."""


def merge_products(model: Model) -> int:
    """Join products of one input with several constant matrices, in place, with the scales and biases that follow.

    A matrix that something else reads as well, such as one that layers share in other company, is left alone: it would
    be stored twice.

    Args:
        model: A tidy graph, in float32 or as ``quantize_graph`` leaves it.

    Returns:
        How many products there are less.
    """
    return _Merging(model).run()


@dataclass
class _Chain:
    """A product and what is done to each of its columns alone.

    Attributes:
        nodes: The product first.
        kinds: What each node is, and the names that it reads which all chains must have in common.
        constants: For each node the constants with a number a column, or the matrix.
    """

    nodes: list[Node] = field(default_factory=list)
    kinds: list[tuple[str, ...]] = field(default_factory=list)
    constants: list[tuple[str, ...]] = field(default_factory=list)

    def add(self, node: Node, kind: tuple[str, ...], constants: tuple[str, ...]) -> None:
        self.nodes.append(node)
        self.kinds.append(kind)
        self.constants.append(constants)

    def cut(self, length: int) -> _Chain:
        return _Chain(self.nodes[:length], self.kinds[:length], self.constants[:length])


class _Merging:
    def __init__(self, model: Model) -> None:
        self.graph = model.graph
        self.weights = {weight.name: weight for weight in self.graph.initializer}
        self.made_by = {name: node for node in self.graph.node for name in node.output}
        self.place = {name: place for place, node in enumerate(self.graph.node) for name in node.output}
        self.readers: dict[str, list[Node]] = defaultdict(list)
        for node in self.graph.node:
            for name in reads(node):
                self.readers[name].append(node)
        self.outputs = {value.name for value in self.graph.output}
        self.arrays: dict[str, Array] = {}

    def run(self) -> int:
        groups: dict[tuple[str, ...], list[_Chain]] = defaultdict(list)
        for node in self.graph.node:
            if chain := self._chain(node):
                groups[node.op_type, node.input[0], *chain.kinds[0]].append(chain)
        joined = [_alike(group) for group in groups.values() if len(group) > 1]
        company = Counter(map(_matrices, joined))
        instead: dict[int, list[Node]] = {}
        gone: set[int] = set()
        saved = 0
        for group in joined:
            if all(self._uses(matrix) == company[_matrices(group)] for matrix in _matrices(group)):
                instead[id(group[0].nodes[0])] = self._merged(group)
                gone |= {id(node) for chain in group for node in chain.nodes}
                saved += len(group) - 1
        nodes: list[Node] = []
        for node in self.graph.node:
            nodes += instead.get(id(node), [] if id(node) in gone else [node])
        set_nodes(self.graph, nodes)
        drop_unused(self.graph)
        set_weights(self.graph, self.arrays)
        return saved

    def _uses(self, matrix: str) -> int:
        """Return how many nodes read a matrix, through its DequantizeLinear if it has one."""
        readers = self.readers[matrix]
        return sum(len(self.readers[n.output[0]]) if n.op_type == "DequantizeLinear" else 1 for n in readers)

    def _chain(self, node: Node) -> _Chain | None:
        """Return a product with a constant matrix and what follows it, or None."""
        if node.op_type not in PRODUCTS or attributes(node):
            return None
        matrix, scale = self._matrix(node.input[1])
        if not matrix:
            return None
        chain = _Chain()
        width = self.weights[matrix].dims[1]
        chain.add(node, ("scaled" if scale else "", *node.input[2:]), (matrix, *([scale] if scale else [])))
        while step := self._next(chain, width):
            chain.add(*step)
        return chain

    def _matrix(self, name: str) -> tuple[str, str]:
        """Return the names of a constant matrix and of its scales, both empty if it is none."""
        made = self.made_by.get(name)
        scale = ""
        if made is not None:
            per_column = made.op_type == "DequantizeLinear" and len(made.input) == 2
            if not per_column or attributes(made).get("axis", 1) != 1 or made.input[1] not in self.weights:
                return "", ""
            name, scale = made.input
            if len(self.weights[scale].dims) != 1:
                return "", ""
        is_matrix = name in self.weights and len(self.weights[name].dims) == 2
        return (name, scale) if is_matrix else ("", "")

    def _next(self, chain: _Chain, width: int) -> tuple[Node, tuple[str, ...], tuple[str, ...]] | None:
        """Return what is done to the columns next, its kind and its constants; None at the chain's end."""
        out, product = chain.nodes[-1].output[0], chain.nodes[0].output[0]
        if out in self.outputs or len(self.readers[out]) != 1:
            return None
        (reader,) = self.readers[out]
        if reader.op_type == "Cast":
            return reader, ("Cast", str(attributes(reader)["to"])), ()
        if reader.op_type not in ("Mul", "Add") or list(reader.input).count(out) != 1:
            return None
        other = next(name for name in reader.input if name != out)
        if self._of_columns(other, width):
            return reader, (reader.op_type,), (other,)
        if self._of_rows(other, product):
            return reader, (reader.op_type, other), ()
        made = self.made_by.get(other)
        if made is None or made.op_type != "Mul" or len(self.readers[other]) != 1:
            return None
        constant = next((name for name in made.input if self._of_columns(name, width)), "")
        rows = next((name for name in made.input if self._of_rows(name, product)), "")
        return (reader, (reader.op_type, "Mul", rows), (constant,)) if constant and rows else None

    def _of_columns(self, name: str, width: int) -> bool:
        return name in self.weights and list(self.weights[name].dims) == [width] != [1]

    def _of_rows(self, name: str, product: str) -> bool:
        """Whether a value has one number for each row, or one in all, and is there before a product."""
        if name in self.weights:
            return int(np.prod(self.weights[name].dims)) == 1
        made = self.made_by.get(name)
        if made is None or self.place[name] > self.place[product]:
            return False
        if made.op_type == "DynamicQuantizeLinear":
            return bool(name != made.output[0])
        if made.op_type in ("ReduceMax", "ReduceMin"):
            return bool(attributes(made).get("keepdims", 1))
        return made.op_type in OF_ROWS and all(self._of_rows(one, product) for one in made.input)

    def _merged(self, group: Sequence[_Chain]) -> list[Node]:
        """Return the nodes that take the place of a group's."""
        first = group[0].nodes[0]
        stem = f"{first.output[0]}_joined"
        matrix, *scales = (self._joined(names) for names in _columns(group, 0))
        nodes = []
        if scales:
            nodes.append(_node("DequantizeLinear", [matrix, *scales], [f"{stem}_matrix"], axis=1))
            matrix = f"{stem}_matrix"
        last = stem
        nodes.append(_node(first.op_type, [first.input[0], matrix, *first.input[2:]], [last], first.name))
        for place, node in enumerate(group[0].nodes[1:], start=1):
            kind, *others = group[0].kinds[place]
            before, last = last, f"{stem}_{place}"
            constants = [self._joined(names) for names in _columns(group, place)]
            if kind == "Cast":
                nodes.append(_node(kind, [before], [last], node.name, to=int(others[0])))
                continue
            if others[:1] == ["Mul"]:
                nodes.append(_node("Mul", [others[1], constants.pop()], [f"{last}_both"]))
                others = [f"{last}_both"]
            nodes.append(_node(kind, [before, *constants, *others], [last], node.name))
        widths = np.array([self.weights[chain.constants[0][0]].dims[1] for chain in group], dtype=np.int64)
        self.arrays[f"{stem}_widths"] = widths
        parts = [chain.nodes[-1].output[0] for chain in group]
        return [*nodes, _node("Split", [last, f"{stem}_widths"], parts, f"{stem}_split", axis=-1)]

    def _joined(self, names: Sequence[str]) -> str:
        """Return the name of constants side by side, which are stored once for all groups of the same ones."""
        name = f"{names[0]}_and_{len(names) - 1}"
        if name not in self.arrays:
            parts = [onnx.numpy_helper.to_array(self.weights[one]) for one in names]
            self.arrays[name] = np.ascontiguousarray(np.concatenate(parts, axis=-1))
        return name


def _node(operator: str, inputs: Sequence[str], outputs: Sequence[str], name: str = "", **given: Any) -> Node:
    return onnx.helper.make_node(operator, inputs, outputs, name or outputs[0], **given)


def _alike(group: Sequence[_Chain]) -> list[_Chain]:
    """Return the chains, each as long as all of them do the same."""
    length = 0
    for kinds in zip(*(chain.kinds for chain in group), strict=False):
        if len({*kinds}) > 1:
            break
        length += 1
    return [chain.cut(length) for chain in group]


def _matrices(group: Sequence[_Chain]) -> tuple[str, ...]:
    return tuple(chain.constants[0][0] for chain in group)


def _columns(group: Sequence[_Chain], place: int) -> list[tuple[str, ...]]:
    """Return the names of the constants of all chains at a place."""
    return list(zip(*(chain.constants[place] for chain in group), strict=True))
