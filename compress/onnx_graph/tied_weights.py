"""A weight and its transpose stored once: the embedding matrix of a network whose head is tied to it."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.helper import make_node

from compress.onnx_graph.rewrites import Model

LEAST = 2**16
"""Numbers from which on a weight is looked at."""


def tie_transposed(model: Model) -> tuple[str, ...]:
    """Let weights that are another one transposed be that one's ``Transpose``, in place; return their names.

    Exporters write out transposed what a network multiplies with, so that one that ties its head to its embedding
    matrix (Press and Wolf 2017, arXiv 1608.05859) would have it twice in the file. What runs the graph transposes it
    once, when it is loaded.
    """
    graph, tied = model.graph, dict[str, str]()
    large = [one for one in graph.initializer if len(one.dims) == 2 and one.dims[0] * one.dims[1] >= LEAST]
    weights = {one.name: numpy_helper.to_array(one) for one in large}
    for first, second in combinations(weights, 2):
        if not {first, second} & {*tied, *tied.values()} and _transposed(weights[first], weights[second]):
            tied[second] = first
    if tied:
        kept = [one for one in graph.initializer if one.name not in tied]
        nodes = [make_node("Transpose", [own], [name], f"{name}/Transpose", perm=[1, 0]) for name, own in tied.items()]
        nodes += graph.node
        for field, values in ((graph.initializer, kept), (graph.node, nodes)):
            del field[:]
            field.extend(values)
    return tuple(tied)


def _transposed(one: NDArray[Any], other: NDArray[Any]) -> bool:
    if one.shape != other.shape[::-1] or one.dtype != other.dtype:
        return False
    return np.array_equal(one[0], other[:, 0]) and np.array_equal(one.T, other)
