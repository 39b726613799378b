"""Which slices of its inputs an ONNX operator needs so that it can give one slice of its output, operator by operator.

A slice is everything at one place of one axis. For the row of a matrix product, the row of the left factor and the
whole right one are enough.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from compress.onnx_graph.rewrites import Node, attributes

Shape = tuple[int, ...]
Axes = list[int | None]
"""For each input of a node the axis of which one place is needed; None where all of it is."""


@dataclass(frozen=True)
class Values:
    """What is known of the values in a graph, by their names.

    Attributes:
        shapes: Their shapes at several sizes of the graph's inputs.
        constants: The arrays of those that never change.
    """

    shapes: Mapping[str, Sequence[Shape]]
    constants: Mapping[str, NDArray[Any]]

    def rank(self, name: str) -> int:
        """Return how many axes a value has."""
        return len(self.shapes[name][0])

    def aligned(self, name: str, from_end: int) -> int | None:
        """Return the axis so many places from the end; None where the value has none there, or one that is spread."""
        axis = self.rank(name) - from_end
        return axis if axis >= 0 and any(shape[axis] != 1 for shape in self.shapes[name]) else None


def needed_axes(node: Node, axis: int, values: Values) -> Axes | None:
    """Return of which axis of each input one place is needed for one place of ``axis`` of the outputs.

    Args:
        node: A node all of whose outputs are needed at that place alone.
        axis: Counted from the start.
        values: Of the values that it reads and writes.

    Returns:
        An axis or None for each input; None if the operator needs everything, or is not known here.
    """
    rule = RULES.get(node.op_type)
    return None if rule is None else rule(node, axis, values)


def _elementwise(node: Node, axis: int, values: Values) -> Axes:
    from_end = values.rank(node.output[0]) - axis
    return [values.aligned(name, from_end) if name else None for name in node.input]


def _beside(default: int) -> Callable[[Node, int, Values], Axes | None]:
    """Return the rule of operators that work along one axis and leave the others apart."""

    def rule(node: Node, axis: int, values: Values) -> Axes | None:
        along = attributes(node).get("axis", default) % values.rank(node.output[0])
        return None if along == axis else [axis, *_whole(node)]

    return rule


def _normalized(node: Node, axis: int, values: Values) -> Axes | None:
    first = attributes(node).get("axis", -1) % values.rank(node.output[0])
    return [axis, *_whole(node)] if axis < first else None


def _product(node: Node, axis: int, values: Values) -> Axes | None:
    left, right = node.input
    from_end = values.rank(node.output[0]) - axis
    if min(values.rank(left), values.rank(right)) < 2:
        return None
    if from_end > 2:
        return _elementwise(node, axis, values)
    return [values.rank(left) - 2, None] if from_end == 2 else [None, values.rank(right) - 1]


def _packed_product(node: Node, axis: int, values: Values) -> Axes | None:
    return [axis, *_whole(node)] if axis < values.rank(node.output[0]) - 1 else None


def _gemm(node: Node, axis: int, values: Values) -> Axes | None:
    bias = [values.aligned(name, 2) for name in node.input[2:]]
    return [attributes(node).get("transA", 0), None, *bias] if axis == 0 else None


def _einsum(node: Node, axis: int, values: Values) -> Axes | None:
    del values
    equation = attributes(node)["equation"].decode().replace(" ", "")
    operands, _, out = equation.partition("->")
    if not out or "." in equation:
        return None
    places = [operand.find(out[axis]) for operand in operands.split(",")]
    return [None if place < 0 else place for place in places]


def _transpose(node: Node, axis: int, values: Values) -> Axes:
    last = values.rank(node.output[0]) - 1
    return [attributes(node).get("perm", range(last, -1, -1))[axis]]


def _reshape(node: Node, axis: int, values: Values) -> Axes | None:
    """Find the axis with the same size and as many numbers before it; its target must then be set anew."""
    before, after = values.shapes[node.input[0]], values.shapes[node.output[0]]
    for place in range(values.rank(node.input[0])):
        pairs = zip(before, after, strict=True)
        if all(a[place] == b[axis] and _count(a[:place]) == _count(b[:axis]) for a, b in pairs):
            return [place, None]
    return None


def _unsqueeze(node: Node, axis: int, values: Values) -> Axes | None:
    new = _places(node, 1, node.output[0], values)
    return None if new is None or axis in new else [axis - sum(place < axis for place in new), None]


def _squeeze(node: Node, axis: int, values: Values) -> Axes | None:
    gone = _places(node, 1, node.input[0], values)
    if gone is None:
        return None
    return [[place for place in range(values.rank(node.input[0])) if place not in gone][axis], None]


def _concat(node: Node, axis: int, values: Values) -> Axes | None:
    along = attributes(node)["axis"] % values.rank(node.output[0])
    return None if along == axis else [axis for _ in node.input]


def _slice(node: Node, axis: int, values: Values) -> Axes | None:
    cut = _places(node, 3, node.input[0], values) if len(node.input) > 3 else None
    return None if cut is None or axis in cut else [axis, *_whole(node)]


def _gather(node: Node, axis: int, values: Values) -> Axes:
    data, indices = node.input
    along, count = attributes(node).get("axis", 0) % values.rank(data), values.rank(indices)
    if along <= axis < along + count:
        return [None, axis - along]
    return [axis if axis < along else axis - count + 1, None]


def _gather_elements(node: Node, axis: int, values: Values) -> Axes:
    along = attributes(node).get("axis", 0) % values.rank(node.output[0])
    return [None if axis == along else axis, axis]


def _places(node: Node, at: int, of: str, values: Values) -> list[int] | None:
    """Return the axes that an input of a node names, counted from the start; None if they are not known."""
    given = values.constants.get(node.input[at]) if len(node.input) > at else None
    return None if given is None else [int(place) % values.rank(of) for place in given.ravel()]


def _whole(node: Node) -> Axes:
    return [None] * (len(node.input) - 1)


def _count(sizes: Shape) -> int:
    count = 1
    for size in sizes:
        count *= size
    return count


_ELEMENTWISE = """Abs Add And Cast Clip Div Elu Equal Erf Exp Gelu Greater GreaterOrEqual HardSigmoid HardSwish Identity
LeakyRelu Less LessOrEqual Log Max Min Mish Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu Sigmoid Sign Softplus
Softsign Sqrt Sub Tanh Where Xor""".split()  # noqa: SIM905 (a list has a line for each)
RULES: dict[str, Callable[[Node, int, Values], Axes | None]] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(("Softmax", "LogSoftmax"), _beside(-1)),
    "Split": _beside(0),
    "LayerNormalization": _normalized,
    "MatMul": _product,
    "MatMulNBits": _packed_product,
    "Gemm": _gemm,
    "Einsum": _einsum,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Concat": _concat,
    "Slice": _slice,
    "Gather": _gather,
    "GatherElements": _gather_elements,
}
"""What is not listed is computed for all places."""
