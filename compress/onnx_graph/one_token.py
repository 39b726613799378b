"""Where a head reads the last states of one token alone, what leads to them is computed for that token alone.

The last layer of a classifier then has one query, one row of attention, feed-forward network and norms for each text;
keys and values still see all tokens. Nothing is said about families: the place that is read is followed back through
the graph as far as every reader of a value needs this one place. Only rounding differs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from compress.onnx_graph.rewrites import Model, Node, attributes, module_of, reads, set_nodes, set_weights
from compress.onnx_graph.slice_rules import Shape, Values, needed_axes
from compress.onnx_graph.static_shapes import constant_target, drop_unused, probed_sizes
from eval.cost.onnx_macs import PRODUCTS, shapes_of
from eval.encoding import Array
from eval.kinds.kind_registry import kind_of
from teachers.anatomy.encoder import inner_family
from teachers.taskmodel import TaskModel

Part = tuple[int, int] | None
"""Axis and place of what is read of a value; None for all of it."""


def narrow_to_one_token(model: Model) -> tuple[str, ...]:
    """Compute for one token what is read of one token alone, in place.

    Args:
        model: A tidy float32 graph; the first two axes of its inputs are rows and tokens.

    Returns:
        The names of the products with a weight that are now computed for one token; none where every token is read.
    """
    narrowing = _Narrowing(model)
    found = tuple(node.name for node in model.graph.node if node.name in narrowing.parts and narrowing.is_linear(node))
    if narrowing.parts:
        narrowing.rewrite()
    return found


def every_token(model: TaskModel, narrowed: Sequence[str]) -> str:
    """Return why the last layer, or its attention, is computed for all tokens; empty if it is not.

    Args:
        model: What is exported.
        narrowed: What ``narrow_to_one_token`` returned.
    """
    kind, config = kind_of(model.task.kind), model.model.config
    if kind.per_token or kind.writes:
        return f"{kind.name} reads every token"
    if kind.vectors and model.task.pooling != "first":
        return "a vector is the mean over all tokens" if model.task.pooling == "mean" else "a vector is of all tokens"
    if not narrowed:
        return f"{config.model_type} has no layer of which one token alone is read"
    family = inner_family(model.model)
    asked = [path for role, path in family.parts.items() if "query" in role and "position" not in role]
    if not family.parts or any(path in name for path in asked for name in narrowed):
        return ""
    return f"the queries of {family.model_type} are computed for all tokens, what follows for one"


def grows_with_tokens(model: Model, narrowed: Sequence[str]) -> list[str]:
    """Return which products a graph computes for more than one token although they are said to be for one.

    Args:
        model: A graph, in 8 bits or not; nodes within the branches of an early exit are passed over.
        narrowed: Names of products.
    """
    found = {node.name: node.output[0] for node in model.graph.node if node.name in set(narrowed)}
    if not found:
        return []
    sizes = probed_sizes(model)
    seen = shapes_of(model, list(found.values()), [_ones(model.graph, *each) for each in sizes])
    counts = [[np.prod(shape) // rows for shape in shapes] for shapes, (rows, _) in zip(seen, sizes, strict=True)]
    return [name for name, *own in zip(found, *counts, strict=True) if len(set(own)) > 1]


class _Narrowing:
    """What is needed of each value, found from the outputs backwards.

    Attributes:
        parts: Name of a node -> the part of its outputs that is needed, of nodes that give it without the rest.
        asked: Name of such a node -> the part that it needs of each input.
        targets: Name of such a Reshape -> its new target.
    """

    def __init__(self, model: Model) -> None:
        self.graph = model.graph
        self.parts: dict[str, Part] = {}
        self.asked: dict[str, list[Part]] = {}
        self.targets: dict[str, list[int]] = {}
        self.values = _values(model)
        read: dict[str, set[Part]] = defaultdict(set)
        for value in self.graph.output:
            read[value.name].add(None)
        for node in reversed(self.graph.node):
            wanted = {part for name in node.output for part in read[name]}
            if not wanted:
                continue  # nothing reads it any more
            asked = self._narrowed(node, wanted.pop()) if len(wanted) == 1 else None
            for name, part in zip(node.input, asked or self._read_by(node), strict=True):
                read[name].add(part)
            for name in reads(node) - set(node.input):  # in the branches of an If
                read[name].add(None)

    def _narrowed(self, node: Node, part: Part) -> list[Part] | None:
        """Return what a node needs of its inputs to give a part of its outputs, and remember it; None if all."""
        axes = None if part is None else needed_axes(node, part[0], self.values)
        if part is None or axes is None:
            return None
        if node.op_type == "Reshape":
            before, after = (self.values.shapes[name] for name in (node.input[0], node.output[0]))
            target = constant_target(_with_one(before, axes[0]), _with_one(after, part[0]))
            if target is None:
                return None
            self.targets[node.name] = target
        self.parts[node.name] = part
        self.asked[node.name] = [None if axis is None else (axis, part[1]) for axis in axes]
        return self.asked[node.name]

    def _read_by(self, node: Node) -> list[Part]:
        """Return what a node that is computed as it stands reads: all, but for a Gather or Slice of one token."""
        whole: list[Part] = [None] * len(node.input)
        known = [self.values.constants.get(name) for name in node.input[1:4]]
        if node.op_type not in ("Gather", "Slice") or any(array is None or array.size != 1 for array in known):
            return whole
        places = [int(array.item()) for array in known if array is not None]
        if node.op_type == "Gather":
            place, axis = places[0], attributes(node).get("axis", 0)
        elif len(places) == 3 and places[:2] == [0, 1]:
            place, axis = 0, places[2]
        else:
            return whole
        shapes = self.values.shapes[node.input[0]]
        axis %= len(shapes[0])
        return [(axis, place), *whole[1:]] if len({shape[axis] for shape in shapes}) > 1 else whole

    def is_linear(self, node: Node) -> bool:
        """Whether a node is a product with a weight, which has the same shape whatever the inputs are."""
        product = node.op_type in (*PRODUCTS, "Einsum") and len(node.input) > 1
        return product and len(set(self.values.shapes[node.input[1]])) == 1

    def rewrite(self) -> None:
        """Let each node that gives one token read no more than that."""
        nodes: list[Node] = []
        arrays: dict[str, Any] = {}
        given = {name: self.parts.get(node.name) for node in self.graph.node for name in node.output}
        taken: set[str] = set()
        for node in self.graph.node:
            for place, part in enumerate(self.asked.get(node.name, ())):
                name = node.input[place]
                if part is None or given.get(name) == part:
                    continue
                index, node.input[place] = f"token_{part[1]}", f"{name}_token_{part[1]}_of_{part[0]}"
                arrays[index] = np.array([part[1]], dtype=np.int64)
                if node.input[place] not in taken:
                    taken.add(node.input[place])
                    title = f"{module_of(node)}/Token_{len(taken)}"
                    chosen = [node.input[place]]
                    nodes.append(onnx.helper.make_node("Gather", [name, index], chosen, title, axis=part[0]))
            if node.name in self.targets:
                node.input[1] = f"{node.output[0]}_token_shape"
                arrays[node.input[1]] = np.array(self.targets[node.name], dtype=np.int64)
                del node.attribute[:]  # of an exporter to which 0 does not mean that an axis stays
            nodes.append(node)
        set_nodes(self.graph, nodes)
        drop_unused(self.graph)
        set_weights(self.graph, arrays)


def _values(model: Model) -> Values:
    """Run a graph on inputs of several sizes; return the shapes of all its values, and its small constants."""
    graph = model.graph
    weights = {weight.name: weight for weight in graph.initializer}
    weights |= {node.output[0]: attributes(node).get("value") for node in graph.node if node.op_type == "Constant"}
    small = {name: weight for name, weight in weights.items() if weight is not None and len(weight.dims) < 2}
    names = [value.name for value in graph.input] + [weight.name for weight in graph.initializer]
    names += [name for node in graph.node for name in node.output if name]
    seen = shapes_of(model, names, [_ones(graph, *sizes) for sizes in probed_sizes(model)])
    shapes = dict(zip(names, zip(*seen, strict=True), strict=True))
    return Values(shapes, {name: onnx.numpy_helper.to_array(weight) for name, weight in small.items()})


def _ones(graph: Any, rows: int, tokens: int) -> dict[str, Array]:
    found = {}
    for value in graph.input:
        kind = value.type.tensor_type
        shape = (rows, tokens, *(axis.dim_value for axis in kind.shape.dim[2:]))
        found[value.name] = np.ones(shape, onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
    return found


def _with_one(shapes: Sequence[Shape], axis: int | None) -> list[Shape]:
    return [tuple(1 if place == axis else size for place, size in enumerate(shape)) for shape in shapes]
