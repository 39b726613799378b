"""A word table that the head is tied to stands once in the file, and what is computed stays the same."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from onnxruntime import InferenceSession

from compress.export import export
from compress.export.check.verification import verify
from compress.onnx_graph import tied_weights
from compress.onnx_graph.tied_weights import tie_transposed
from tests.tiny import tiny_task, tiny_taskmodel


def graph_of(weights):
    """Return ``x @ first @ second @ …`` with these weights."""
    nodes = [make_node("MatMul", [f"x{n}" if n else "x", name], [f"x{n + 1}"]) for n, name in enumerate(weights)]
    first, last = next(iter(weights.values())), list(weights.values())[-1]
    given = make_tensor_value_info("x", TensorProto.FLOAT, [None, first.shape[0]])
    found = make_tensor_value_info(f"x{len(weights)}", TensorProto.FLOAT, [None, last.shape[1]])
    tensors = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    return make_model(
        make_graph(nodes, "g", [given], [found], tensors), opset_imports=[make_opsetid("", 17)], ir_version=8
    )


def answers(model, x):
    return InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


def test_the_transpose_of_a_weight_is_computed_and_what_only_looks_like_it_stays(monkeypatch):
    monkeypatch.setattr(tied_weights, "LEAST", 12)
    chance = np.random.default_rng(5)
    one = chance.standard_normal((4, 6)).astype(np.float32)
    near = one.T.copy()
    near[5, 3] += 1
    model = graph_of({"one": one, "other": one.T.copy(), "again": one.copy(), "near": near})
    x = chance.standard_normal((3, 4)).astype(np.float32)
    before = answers(model, x)
    assert tie_transposed(model) == ("other",)
    assert [weight.name for weight in model.graph.initializer] == ["one", "again", "near"]
    onnx.checker.check_model(model)
    np.testing.assert_array_equal(answers(model, x), before)
    assert tie_transposed(model) == ()


@pytest.mark.parametrize(
    ("family", "kind", "target"), [("gpt2", "causal-lm", "generator"), ("bert", "masked-lm", "onnx")]
)
def test_a_tied_table_stands_once_in_the_file(family, kind, target, tmp_path, monkeypatch):
    monkeypatch.setattr(tied_weights, "LEAST", 2**10)
    task = tiny_task(kind)
    model = tiny_taskmodel(family, task.spec)
    export(model, tmp_path / "out", target)
    graph = onnx.load(tmp_path / "out" / "model.onnx").graph
    words = model.model.config.vocab_size
    assert sum(words in weight.dims for weight in graph.initializer if len(weight.dims) == 2) == 1
    assert verify(tmp_path / "out")[0].passed
