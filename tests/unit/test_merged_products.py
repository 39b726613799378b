"""Products of one input become one product, and the answers stay what they were."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from compress.export.default_int8 import default_forms
from compress.modules.int8_scheme import Int8
from compress.onnx_graph.build import onnx_graph
from compress.onnx_graph.merged_products import merge_products
from compress.quantize.dynamic import mixed
from tests.tiny import FAMILIES, LAYERS, at_first, tiny_task, tiny_taskmodel

MERGED = 2 * (LAYERS - 1) + 1
"""Of three products of a layer one is left; the last layer's query is of the first token, and stays alone."""


def answers(graph, inputs):
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {one.name: inputs[one.name] for one in session.get_inputs()})[0]


def products(graph):
    return sum(node.op_type in ("MatMul", "MatMulInteger") for node in graph.graph.node)


def inputs_of(model, task):
    return model.encoder.collate(model.encoder.encode(task.validation[:3]))


def schemes(model, task):
    static = next(iter(default_forms(model, ("static",), task.train))).scheme
    return [None, Int8(), Int8(activations="tensor"), mixed(model), Int8(exclude=("*.key",)), static]


@pytest.mark.parametrize("family", at_first(FAMILIES, "bert"))
def test_answers_are_the_same(family):
    task, model = tiny_task(), tiny_taskmodel(family)
    inputs = inputs_of(model, task)
    for scheme in schemes(model, task):
        apart, joined = (onnx_graph(model, scheme, merged=merged).graph for merged in (False, True))
        np.testing.assert_allclose(answers(joined, inputs), answers(apart, inputs), rtol=0, atol=1e-6)
        assert joined.ByteSize() < apart.ByteSize() + 4000  # no matrix is stored twice
        if family == "bert":
            excluded = scheme is not None and bool(scheme.exclude)
            assert products(apart) - products(joined) == (LAYERS - 1 if excluded else MERGED), scheme


def graph_of(nodes, weights, outputs):
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", None]) for name in outputs]
    taken = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])]
    constants = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]
    return helper.make_model(
        helper.make_graph(nodes, "g", taken, values, constants), opset_imports=[helper.make_opsetid("", 17)]
    )


def numbers(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape)


def merged(nodes, weights, outputs):
    graph = graph_of(nodes, weights, outputs)
    x = {"x": numbers(3, 4).astype(np.float32)}
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    before = session.run(None, x)
    saved = merge_products(graph)
    onnx.checker.check_model(graph, full_check=True)
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    for old, new in zip(before, session.run(None, x), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-6)
    return saved, [node.op_type for node in graph.graph.node]


def product(matrix, out, x="x"):
    return helper.make_node("MatMul", [x, matrix], [out])


def test_biases_follow_in_either_place_and_other_steps_do_not():
    nodes = [
        product("w", "a"),
        helper.make_node("Add", ["a", "b"], ["a_biased"]),
        helper.make_node("Relu", ["a_biased"], ["y"]),
        product("v", "c"),
        helper.make_node("Add", ["d", "c"], ["c_biased"]),
        helper.make_node("Neg", ["c_biased"], ["z"]),
    ]
    weights = {"w": numbers(4, 5), "v": numbers(4, 3), "b": numbers(5), "d": numbers(3)}
    assert merged(nodes, weights, ["y", "z"]) == (1, ["MatMul", "Add", "Split", "Relu", "Neg"])


def test_a_step_that_only_one_of_them_has_stays_behind_the_split():
    nodes = [product("w", "a"), helper.make_node("Add", ["a", "b"], ["y"]), product("v", "z")]
    weights = {"w": numbers(4, 5), "v": numbers(4, 3), "b": numbers(5)}
    assert merged(nodes, weights, ["y", "z"]) == (1, ["MatMul", "Split", "Add"])


def test_what_is_added_for_every_column_anew_stays_behind_the_split():
    nodes = [
        product("u", "residual"),
        product("w", "a", "residual"),
        helper.make_node("Add", ["a", "residual"], ["y"]),
        product("v", "c", "residual"),
        helper.make_node("Add", ["c", "residual"], ["z"]),
    ]
    weights = {"u": numbers(4, 5), "w": numbers(5, 5), "v": numbers(5, 5) * 2}
    assert merged(nodes, weights, ["y", "z"]) == (1, ["MatMul", "MatMul", "Split", "Add", "Add"])


def test_one_factor_a_row_follows_if_it_is_there_before():
    def scaled(rows):
        first = [helper.make_node("ReduceMax", ["x"], ["rows"], axes=[1])]
        nodes = [product("w", "a"), product("v", "c")]
        nodes = first + nodes if rows == "before" else nodes[:1] + first + nodes[1:]
        ends = [helper.make_node("Mul", [name, "rows"], [out]) for name, out in (("a", "y"), ("c", "z"))]
        return merged([*nodes, *ends], {"w": numbers(4, 5), "v": numbers(4, 3)}, ["y", "z"])

    assert scaled("before") == (1, ["ReduceMax", "MatMul", "Mul", "Split"])
    assert scaled("after") == (1, ["MatMul", "Split", "ReduceMax", "Mul", "Mul"])


def test_a_matrix_with_other_readers_stays_alone():
    pair = {"w": numbers(4, 5), "v": numbers(4, 3)}
    nodes = [product("w", "y"), product("v", "z")]
    again = [helper.make_node("Neg", ["x"], ["other"]), product("w", "s", "other")]
    assert merged([*nodes, *again], pair, ["y", "z", "s"])[0] == 0
    # The same company once more is a layer that shares its weights: the matrices are still stored once.
    saved, _ = merged([*nodes, *again, product("v", "t", "other")], pair, ["y", "z", "s", "t"])
    assert saved == 2
    assert merged([product("w", "y"), product("w", "z")], {"w": numbers(4, 5)}, ["y", "z"])[0] == 0
