"""Sizes against counts by hand."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertForSequenceClassification, DebertaV2Config, DebertaV2ForSequenceClassification

from eval.cost.onnx_macs import onnx_macs
from eval.cost.size import Size, file_bytes, folder_bytes, macs, model_size, onnx_size
from eval.errors import UserError
from teachers.taskmodel import evaluating
from tests.tiny import FAMILIES, tiny_taskmodel

HIDDEN, INNER, LAYERS, WORDS, LABELS, LENGTH = 8, 16, 2, 30, 3, 10


def bert(attention="sdpa", device="cpu"):
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        intermediate_size=INNER,
        max_position_embeddings=40,
        num_labels=LABELS,
        attn_implementation=attention,
    )
    with torch.device(device):
        return BertForSequenceClassification(config)


def bert_macs(length):
    layer = length * (4 * HIDDEN * HIDDEN + 2 * HIDDEN * INNER) + 2 * length * length * HIDDEN
    return LAYERS * layer + HIDDEN * HIDDEN + HIDDEN * LABELS


def bert_parameters():
    embeddings = (WORDS + 40 + 2) * HIDDEN + 2 * HIDDEN
    layer = 4 * (HIDDEN * HIDDEN + HIDDEN) + 2 * HIDDEN * INNER + INNER + HIDDEN + 4 * HIDDEN
    return embeddings + LAYERS * layer + HIDDEN * HIDDEN + HIDDEN + HIDDEN * LABELS + LABELS


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_macs_of_bert_by_hand(attention, device):
    assert macs(bert(attention, device), length=LENGTH) == bert_macs(LENGTH)
    assert macs(bert(attention, device), batch=3, length=LENGTH) == 3 * bert_macs(LENGTH)


@pytest.mark.parametrize("family", FAMILIES)
def test_macs_are_those_of_torchs_own_counter(family):
    model = tiny_taskmodel(family).model
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(input_ids=torch.full((1, LENGTH), 2))
    assert macs(model, length=LENGTH) == counter.get_total_flops() // 2


def test_what_was_switched_off_before_an_answer_stays_so():
    model = bert().train()
    model.bert.encoder.layer[0].eval()
    before = [module.training for module in model.modules()]
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == before
    assert len(set(before)) == 2


def test_macs_leave_the_model_as_it_was():
    model = bert().train()
    with torch.no_grad():
        macs(model, length=4)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_macs_of_a_model_that_hands_parameters_to_its_layers():
    config = DebertaV2Config(
        vocab_size=WORDS,
        hidden_size=HIDDEN,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=INNER,
        max_position_embeddings=40,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
    )
    plain = LENGTH * (4 * HIDDEN * HIDDEN + 2 * HIDDEN * INNER) + 2 * LENGTH * LENGTH * HIDDEN
    assert macs(DebertaV2ForSequenceClassification(config), length=LENGTH) > plain


def test_model_size_by_hand():
    model = bert()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
        model.classifier.weight[0] = 0
    size = model_size(model, macs_length=LENGTH)
    count = bert_parameters()
    assert size == Size(count, count - HIDDEN, 4 * count, bert_macs(LENGTH), LENGTH)


def test_shared_parameters_count_once():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    model[1].weight = model[0].weight
    assert model_size(model, macs_length=None).parameters == 16 + 4 + 4


def test_meta_model_has_a_size():
    size = model_size(bert(device="meta"), macs_length=LENGTH)
    assert (size.parameters, size.nonzero, size.bytes) == (bert_parameters(), bert_parameters(), 4 * bert_parameters())


def test_codes_in_buffers_are_parameters_and_other_buffers_only_bytes():
    module = torch.nn.Module()
    module.register_buffer("codes", torch.tensor([[1, 0], [-3, 4]], dtype=torch.int8))
    module.register_buffer("scale", torch.ones(2))
    module.register_buffer("scratch", torch.ones(100), persistent=False)
    assert model_size(module, macs_length=None) == Size(4, 3, 4 + 8)


def onnx_file(path, int8=False):
    """x [batch, tokens, 4] = table[ids]; then MatMul with [4, 6], attention-like product, and a Gemm on a flat row."""
    weight = np.arange(24).reshape(4, 6) % 5
    initializers = [
        numpy_helper.from_array(np.ones((9, 4), np.float32), "table"),
        numpy_helper.from_array(weight.astype(np.int8 if int8 else np.float32), "weight"),
        numpy_helper.from_array(np.array([0, -1], np.int64), "shape"),
    ]
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["x"])]
    if int8:
        nodes += [
            helper.make_node("DynamicQuantizeLinear", ["x"], ["xq", "xs", "xz"]),
            helper.make_node("MatMulInteger", ["xq", "weight", "xz"], ["products"]),
            helper.make_node("Cast", ["products"], ["y"], to=TensorProto.FLOAT),
        ]
    else:
        nodes += [helper.make_node("MatMul", ["x", "weight"], ["y"])]
    nodes += [
        helper.make_node("Transpose", ["y"], ["yt"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["y", "yt"], ["scores"]),
        helper.make_node("Reshape", ["scores", "shape"], ["out"]),
    ]
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "tokens"])
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, ["batch", "all"])
    graph = helper.make_graph(nodes, "graph", [ids], [out], initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), str(path))
    return path


@pytest.mark.parametrize("int8", [False, True])
def test_onnx_size_by_hand(tmp_path, int8):
    zeros = sum(number % 5 == 0 for number in range(24))
    stored = 9 * 4 * 4 + (24 if int8 else 24 * 4) + 2 * 8
    products = LENGTH * 4 * 6 + LENGTH * LENGTH * 6
    found = onnx_size(onnx_file(tmp_path / "model.onnx", int8), macs_length=LENGTH)
    assert found == Size(36 + 24, 36 + 24 - zeros, stored, products, LENGTH)


def test_onnx_external_data_is_read(tmp_path):
    model = onnx.load(str(onnx_file(tmp_path / "a.onnx")))
    beside = tmp_path / "beside"
    beside.mkdir()
    onnx.save(model, str(beside / "b.onnx"), save_as_external_data=True, location="b.onnx.data", size_threshold=0)
    assert onnx_size(beside / "b.onnx", None) == onnx_size(tmp_path / "a.onnx", None)
    assert file_bytes(beside) == (beside / "b.onnx").stat().st_size + (beside / "b.onnx.data").stat().st_size


def test_onnx_macs_are_unknown_behind_an_unknown_product(tmp_path):
    model = onnx.load(str(onnx_file(tmp_path / "a.onnx")))
    model.graph.node.append(helper.make_node("GRU", ["y"], ["z"]))
    assert onnx_macs(model, LENGTH) is None


@pytest.mark.parametrize("states", ["states", ""])
def test_macs_of_an_lstm_by_hand(states):
    """Without the states of all tokens among its outputs, an ONNX LSTM does not say how wide it is."""
    weights = {"w": np.ones((1, 4 * 5, 3)), "r": np.ones((1, 4 * 5, 5))}
    nodes = [
        helper.make_node("Transpose", ["words"], ["x"], perm=[1, 0, 2]),
        helper.make_node("LSTM", ["x", "w", "r"], [states, "last"], hidden_size=5),
    ]
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "input_ids"], ["words"]), *nodes],
        "graph",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "tokens"])],
        [helper.make_tensor_value_info("last", TensorProto.FLOAT, [1, "batch", 5])],
        [
            numpy_helper.from_array(values.astype(np.float32), name)
            for name, values in {**weights, "table": np.ones((9, 3))}.items()
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    assert onnx_macs(model, LENGTH) == (LENGTH * 4 * 5 * (3 + 5) if states else None)


def test_onnx_size_refuses_a_missing_file(tmp_path):
    with pytest.raises(UserError, match=r"no\.onnx: no such ONNX file"):
        onnx_size(tmp_path / "no.onnx")


def test_file_bytes_hold_the_model_alone_and_folder_bytes_everything(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"x" * 70)
    (tmp_path / "tokenizer.json").write_bytes(b"x" * 11)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "model.safetensors").write_bytes(b"x" * 500)
    assert file_bytes(tmp_path) == 70
    assert folder_bytes(tmp_path) == 581
