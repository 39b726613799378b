"""Rewrites of an ONNX graph that leave what it computes as it is: one form for what exporters write in several."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

Node = Any
Model = Any
WRAPPED = "model"
"""Attribute under which the exported wrapper holds the transformers model; node names begin with it."""


def tidy(model: Model) -> None:
    """Bring a freshly exported graph into one form, in place.

    Nodes are named ``module.path/Operator``. Weights that several places share are shared by name. What exporters
    note about themselves goes, since it holds stack traces with paths of this machine.
    """
    graph = model.graph
    _share_weights(graph)
    taken: dict[str, int] = {}
    for node in graph.node:
        stem = f"{_module_path(node)}/{node.op_type}".lstrip("/")
        count = taken.get(stem, 0)
        taken[stem] = count + 1
        node.name = f"{stem}_{count}" if count else stem
        node.doc_string = ""
        del node.metadata_props[:]
    for part in (model, graph, *graph.input, *graph.output, *graph.initializer):
        part.doc_string = ""
        del part.metadata_props[:]
    del graph.value_info[:]


def module_of(node: Node) -> str:
    """Return the dotted path of the module whose forward wrote a node of a tidy graph."""
    return str(node.name).rpartition("/")[0]


def _module_path(node: Node) -> str:
    scopes = next((prop.value for prop in node.metadata_props if prop.key == "pkg.torch.onnx.name_scopes"), None)
    # The tracer names a node /model/bert/encoder/layer.0/…/MatMul; torch.export lists the scopes, the call last.
    path = ".".join(node.name.strip("/").split("/")[:-1]) if scopes is None else ["", *ast.literal_eval(scopes)][-2]
    return str(path).removeprefix(WRAPPED).lstrip(".")


def _share_weights(graph: Any) -> None:
    """Let users of a weight name it themselves where the tracer put an Identity between."""
    weights = {weight.name for weight in graph.initializer}
    outputs = {value.name for value in graph.output}
    source: dict[str, str] = {}
    kept = []
    for node in graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = source.get(name, name)
        if node.op_type == "Identity" and node.input[0] in weights and node.output[0] not in outputs:
            source[node.output[0]] = node.input[0]
        else:
            kept.append(node)
    set_nodes(graph, kept)


def set_nodes(graph: Any, nodes: list[Node]) -> None:
    """Replace the nodes of a graph."""
    del graph.node[:]
    graph.node.extend(nodes)


def set_weights(graph: Any, arrays: dict[str, NDArray[Any]]) -> None:
    """Add weights to a graph and drop those that no node uses."""
    used = {name for node in graph.node for name in reads(node)} | {value.name for value in graph.output}
    kept = [weight for weight in graph.initializer if weight.name in used and weight.name not in arrays]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())


def reads(node: Node) -> set[str]:
    """Return the names that a node reads, also within the branches of an If or the body of a Loop."""
    found = set(node.input)
    for attribute in node.attribute:
        for branch in (attribute.g, *attribute.graphs):
            found.update(value.name for value in branch.output)
            found.update(*(reads(inner) for inner in branch.node))
    return found


def attributes(node: Node) -> dict[str, Any]:
    """Return the attributes of a node as Python values."""
    return {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}


def einsum_as_product(equation: str, weight: NDArray[Any]) -> tuple[NDArray[Any], int, tuple[int, ...]] | None:
    """Express ``einsum(equation, x, weight)`` as one matrix product over the last axes of x.

    Args:
        equation: Such as ``ibh,hnd->ibnd``.
        weight: The constant second operand.

    Returns:
        The matrix ``[inputs, outputs]``, how many axes of x it contracts, and the shape of the axes that take their
        place; None if the equation is no such product.
    """
    operands, _, out = equation.replace(" ", "").partition("->")
    left, _, right = operands.partition(",")
    shared = "".join(letter for letter in right if letter in left)
    free = "".join(letter for letter in right if letter not in left)
    batch = left[: len(left) - len(shared)]
    if not shared or left != batch + shared or out != batch + free or right not in (shared + free, free + shared):
        return None
    shape = tuple(weight.shape[right.index(letter)] for letter in free)
    inputs = int(np.prod([weight.shape[right.index(letter)] for letter in shared]))
    matrix = weight.reshape(inputs, -1) if right.startswith(shared) else weight.reshape(-1, inputs).T
    return np.ascontiguousarray(matrix), len(shared), shape
