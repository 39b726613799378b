"""Shapes that a graph works out each time it runs although they only repeat those of what it has at hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from compress.onnx_graph.rewrites import Model, attributes, reads, set_nodes, set_weights
from eval.cost.onnx_macs import shapes_of
from eval.encoding import Array

Shape = tuple[int, ...]
PROBED = ((3, 7), (5, 13))
"""Rows and tokens of the inputs that shapes are read off at; no model has such numbers of heads."""
SAME, REST = 0, -1
"""What Reshape takes for an axis that stays as it is, and for the one that is worked out."""


def settle_shapes(model: Model, inputs: Mapping[str, Array]) -> None:
    """Give Reshape a constant where it has a computed shape, in place; what computed it goes.

    Exporters write ``Reshape(x, Concat(Shape(x)[0], Shape(x)[1], heads, -1))``, half a dozen nodes for every split
    into heads, which at a batch of one cost as much as a matrix product. Which axes stay, and which are always of the
    same size, is read off while the graph runs on inputs of several shapes.

    Args:
        model: A tidy float32 graph.
        inputs: Arrays that it can run on; their first two axes are dynamic.
    """
    graph = model.graph
    constants = {weight.name for weight in graph.initializer}
    constants |= {node.output[0] for node in graph.node if node.op_type == "Constant"}
    nodes = [node for node in graph.node if node.op_type == "Reshape" and node.input[1] not in constants]
    nodes = [node for node in nodes if not attributes(node).get("allowzero", 0)]
    if not nodes:
        return
    names = [name for node in nodes for name in (node.input[0], node.output[0])]
    seen = shapes_of(model, names, [_resized(inputs, rows, tokens) for rows, tokens in PROBED])
    settled: dict[str, Any] = {}
    for place, node in enumerate(nodes):
        target = constant_target([shapes[2 * place] for shapes in seen], [shapes[2 * place + 1] for shapes in seen])
        if target is not None:
            node.input[1] = f"{node.output[0]}_shape"
            settled[node.input[1]] = np.array(target, dtype=np.int64)
    _drop_unused(graph)
    set_weights(graph, settled)


def constant_target(before: Sequence[Shape], after: Sequence[Shape]) -> list[int] | None:
    """Return what Reshape has to be told so that each shape becomes the other, or None if no constant does it.

    Args:
        before: Shapes of what is reshaped, at several sizes of the inputs.
        after: What each becomes.
    """
    if len({len(shape) for shape in before}) > 1 or len({len(shape) for shape in after}) > 1:
        return None
    target = []
    for axis, sizes in enumerate(zip(*after, strict=True)):
        if len(set(sizes)) == 1 and sizes[0]:  # a size of 0 cannot be written down
            target.append(sizes[0])
        elif axis < len(before[0]) and all(size == shape[axis] for size, shape in zip(sizes, before, strict=True)):
            target.append(SAME)
        else:
            target.append(REST)
    return target if target.count(REST) <= 1 else None


def _resized(inputs: Mapping[str, Array], rows: int, tokens: int) -> dict[str, Array]:
    """Return the inputs with so many rows and tokens, repeated or cut."""
    return {
        name: np.take(np.take(array, np.arange(rows) % len(array), 0), np.arange(tokens) % array.shape[1], 1)
        for name, array in inputs.items()
    }


def _drop_unused(graph: onnx.GraphProto) -> None:
    """Remove nodes whose results nothing reads."""
    kept, needed = [], {value.name for value in graph.output}
    for node in reversed(graph.node):
        if not needed.isdisjoint(node.output):
            needed.update(reads(node))
            kept.append(node)
    set_nodes(graph, kept[::-1])
