"""Shapes that a graph works out each time it runs although they only repeat those of what it has at hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from compress.onnx_graph.rewrites import Model, attributes, reads, set_nodes, set_weights
from eval.cost.onnx_macs import run_plain, shapes_of
from eval.encoding import Array

Shape = tuple[int, ...]
PROBED = ((3, 7), (5, 13))
"""Rows and tokens of the inputs that shapes are read off at; no model has such numbers of heads."""
REACH = "attention_reach"
"""Field of a graph's metadata: how many tokens to each side attention sees, beyond which shapes follow another rule."""
SAME, REST = 0, -1
"""What Reshape takes for an axis that stays as it is, and for the one that is worked out."""


def set_reach(model: Model, tokens: int) -> None:
    """Write into a graph how many tokens to each side its attention sees; 0 says that it sees all."""
    if tokens:
        model.metadata_props.add(key=REACH, value=str(tokens))


def probed_sizes(model: Model) -> tuple[tuple[int, int], ...]:
    """Return rows and tokens of the inputs that shapes of a graph are read off at: less and more than a token sees."""
    reach = next((int(entry.value) for entry in model.metadata_props if entry.key == REACH), 0)
    return (*PROBED, (2, reach + 3), (4, max(reach // 2, 1))) if reach else PROBED


def settle_shapes(model: Model, inputs: Mapping[str, Array]) -> None:
    """Give nodes a constant where they read a computed shape, in place; what computed it goes.

    Exporters write ``Reshape(x, Concat(Shape(x)[0], Shape(x)[1], heads, -1))``, half a dozen nodes for every split
    into heads, which at a batch of one cost as much as a matrix product, and work out the root of a head's width or
    half of a layer's each time. Which axes stay, and what is always the same, is read off while the graph runs on
    inputs of several shapes.

    Args:
        model: A tidy float32 graph.
        inputs: Arrays that it can run on; their first two axes are dynamic.
    """
    _settle_values(model, inputs)
    graph = model.graph
    constants = _constants(graph)
    nodes = [node for node in graph.node if node.op_type == "Reshape" and node.input[1] not in constants]
    nodes = [node for node in nodes if not attributes(node).get("allowzero", 0)]
    if not nodes:
        return
    names = [name for node in nodes for name in (node.input[0], node.output[0])]
    seen = shapes_of(model, names, [_resized(inputs, rows, tokens) for rows, tokens in probed_sizes(model)])
    settled: dict[str, Any] = {}
    for place, node in enumerate(nodes):
        target = constant_target([shapes[2 * place] for shapes in seen], [shapes[2 * place + 1] for shapes in seen])
        if target is not None:
            node.input[1] = f"{node.output[0]}_shape"
            settled[node.input[1]] = np.array(target, dtype=np.int64)
    drop_unused(graph)
    set_weights(graph, settled)


def _settle_values(model: Model, inputs: Mapping[str, Array]) -> None:
    """Make constants of what follows from shapes alone and is the same for inputs of several shapes."""
    graph = model.graph
    known, computed = _constants(graph), set[str]()
    ends: dict[str, None] = {}
    for node in graph.node:
        found = [name for name in node.input if name in computed]
        follows = bool(found) and all(name in known or name in computed for name in node.input if name)
        if node.op_type == "Shape" or (follows and len(node.output) == 1 and reads(node) == set(node.input)):
            computed.update(node.output)
        else:
            ends |= dict.fromkeys(name for name in reads(node) if name in computed)
    if not ends:
        return
    probed = onnx.ModelProto()
    probed.CopyFrom(model)
    probed.graph.output.extend(onnx.ValueInfoProto(name=name) for name in ends)
    seen = run_plain(probed, list(ends), [_resized(inputs, rows, tokens) for rows, tokens in probed_sizes(model)])
    same = {
        name: arrays[0]
        for name, arrays in zip(ends, zip(*seen, strict=True), strict=True)
        if all(np.array_equal(arrays[0], array) for array in arrays)
    }
    for node in graph.node:
        if node.output[0] in same:
            value = onnx.numpy_helper.from_array(same[node.output[0]])
            node.CopyFrom(onnx.helper.make_node("Constant", [], node.output, node.name, value=value))
    drop_unused(graph)


def _constants(graph: Any) -> set[str]:
    return {weight.name for weight in graph.initializer} | {
        node.output[0] for node in graph.node if node.op_type == "Constant"
    }


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
    """Return the inputs with so many rows and tokens, repeated or cut; one that is longer than the first stays so."""
    usual = next(iter(inputs.values())).shape[1]
    found = {}
    for name, array in inputs.items():
        places = np.arange(tokens + array.shape[1] - usual) % array.shape[1]
        found[name] = np.take(np.take(array, np.arange(rows) % len(array), 0), places, 1)
    return found


def drop_unused(graph: onnx.GraphProto) -> None:
    """Remove nodes whose results nothing reads."""
    kept, needed = [], {value.name for value in graph.output}
    for node in reversed(graph.node):
        if not needed.isdisjoint(node.output):
            needed.update(reads(node))
            kept.append(node)
    set_nodes(graph, kept[::-1])
