"""Shapes that only repeat what a graph has at hand become constants, and the graph computes what it did."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from compress.onnx_graph.build import onnx_graph
from compress.onnx_graph.static_shapes import constant_target, settle_shapes
from tests.tiny import FAMILIES, tiny_task, tiny_taskmodel


@pytest.mark.parametrize(
    ("before", "after", "target"),
    [
        ([(3, 7, 8), (5, 13, 8)], [(3, 7, 2, 4), (5, 13, 2, 4)], [0, 0, 2, 4]),
        ([(3, 7, 2, 4), (5, 13, 2, 4)], [(3, 7, 8), (5, 13, 8)], [0, 0, 8]),
        ([(3, 2, 7, 7), (5, 2, 13, 13)], [(6, 7, 7), (10, 13, 13)], None),
        ([(3, 7, 8), (5, 13, 8)], [(21, 8), (65, 8)], [-1, 8]),
        ([(3, 7), (5, 13)], [(3, 1, 1, 7), (5, 1, 1, 13)], [0, 1, 1, -1]),
        ([(3, 7, 8), (5, 8)], [(3, 56), (5, 8)], None),
        ([(3, 0), (5, 0)], [(3, 0), (5, 0)], [0, 0]),
        ([(3, 0), (5, 0)], [(0, 3), (0, 5)], None),
    ],
)
def test_targets_repeat_axes_or_leave_one_open(before, after, target):
    assert constant_target(before, after) == target


def split_into_heads():
    """Return ``Reshape(x, [Shape(x)[0], Shape(x)[1], 2, 4])``, written as exporters do."""
    nodes = [helper.make_node("Shape", ["x"], ["shape"])]
    for axis in (0, 1):
        nodes.append(helper.make_node("Gather", ["shape", f"place{axis}"], [f"size{axis}"], axis=0))
        nodes.append(helper.make_node("Unsqueeze", [f"size{axis}", "place0_list"], [f"axis{axis}"]))
    nodes.append(helper.make_node("Concat", ["axis0", "axis1", "heads", "channels"], ["target"], axis=0))
    nodes.append(helper.make_node("Reshape", ["x", "target"], ["y"]))
    constants = {"place0": 0, "place1": 1, "place0_list": [0], "heads": [2], "channels": [4]}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "length", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(np.array(value, np.int64), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_computed_shape_becomes_a_constant_and_what_computed_it_goes():
    model = split_into_heads()
    settle_shapes(model, {"x": np.zeros((2, 11, 8), np.float32)})
    assert [node.op_type for node in model.graph.node] == ["Reshape"]
    assert [weight.name for weight in model.graph.initializer] == ["y_shape"]
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(0).normal(size=(4, 9, 8)).astype(np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], x.reshape(4, 9, 2, 4))


def test_what_only_a_branch_reads_stays():
    model = split_into_heads()
    graph = model.graph
    branches = {
        name: helper.make_graph(
            [helper.make_node(kind, ["y", "twice"], [name])],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)],
        )
        for name, kind in (("then_branch", "Add"), ("else_branch", "Sub"))
    }
    graph.node.append(helper.make_node("Add", ["one", "one"], ["twice"]))
    graph.node.append(helper.make_node("If", ["yes"], ["z"], **branches))
    for name, value in {"one": np.float32(1), "yes": np.array(True)}.items():
        graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
    graph.output[0].name = "z"
    settle_shapes(model, {"x": np.zeros((2, 11, 8), np.float32)})
    assert [node.op_type for node in graph.node] == ["Reshape", "Add", "If"]
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.ones((4, 9, 8), np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], x.reshape(4, 9, 2, 4) + 2)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "deberta-v2"])  # merges batch and heads
def test_no_family_works_out_how_to_split_into_heads(family):
    graph = onnx_graph(tiny_taskmodel(family, tiny_task().spec), None).graph
    known = {weight.name for weight in graph.graph.initializer}
    known |= {node.output[0] for node in graph.graph.node if node.op_type == "Constant"}
    computed = [node.name for node in graph.graph.node if node.op_type == "Reshape" and node.input[1] not in known]
    assert not [name for name in computed if "attention" in name and "layer" in name], computed
