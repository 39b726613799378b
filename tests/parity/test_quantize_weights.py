"""Weight-only codes against numbers by hand, a slow loop over blocks, and the operator of ONNX Runtime."""

import copy

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from compress.artifact.artifact import load
from compress.engine.steps import run
from compress.export import export, export_onnx
from compress.export.runtime import Runtime
from compress.modules.low_bit import unpack
from compress.modules.packed import PackedEmbedding, PackedLinear
from compress.quantize.weights import WeightQuantization
from compress.recipe import Recipe
from compress.technique import Inputs
from eval.cost.size import onnx_size
from eval.inference import predict
from tests.tiny import in_turn, tiny_task, tiny_taskmodel


def packed_row(values, bits, width=16):
    linear = nn.Linear(len(values), 1, bias=False)
    linear.weight = nn.Parameter(torch.tensor([values]))
    return PackedLinear.of(linear, bits=bits, width=width, symmetric=True)


def test_three_numbers_by_hand():
    packed = packed_row([-1.0, 0.5, 0.25], 8)
    assert packed.scale.tolist() == [[pytest.approx(1 / 127)]]
    assert (unpack(packed.codes, 8, 16)[0, :3].int() - 128).tolist() == [-127, 64, 32]
    packed = packed_row([-1.0, 0.5, 0.25, 0.0], 4)
    assert packed.scale.tolist() == [[pytest.approx(1 / 7)]]
    assert (unpack(packed.codes, 4, 16)[0, :4].int() - 8).tolist() == [-7, 4, 2, 0]
    assert packed.matrix()[0].tolist() == pytest.approx([-1, 4 / 7, 2 / 7, 0])


@pytest.mark.parametrize(("name", "levels"), [("int4", 7), ("int8", 127)])
def test_blocks_against_a_slow_loop(name, levels):
    task = tiny_task("classification")
    source = tiny_taskmodel("bert", task.spec)
    result = run(Recipe(steps=(WeightQuantization(format=name, block_size=16),)), source)
    for path in ("bert.encoder.layer.1.intermediate.dense", "bert.embeddings.word_embeddings"):
        weight = source.model.get_submodule(path).weight.detach().numpy()
        found = result.model.get_submodule(path).matrix().numpy()
        expected = np.zeros_like(weight)
        for row in range(len(weight)):
            for start in range(0, weight.shape[1], 16):
                block = weight[row, start : start + 16]
                scale = np.abs(block).max() / levels if block.any() else 1.0
                expected[row, start : start + 16] = np.rint(block / scale) * scale
        np.testing.assert_allclose(found, expected, atol=1e-6)
        assert np.abs(found - weight).max() <= np.abs(weight).max() / levels / 2 + 1e-6


def test_what_is_packed_and_what_it_weighs():
    task = tiny_task("classification")
    technique = WeightQuantization(exclude=("*.layer.0",), ranges="float16")
    result = run(Recipe(steps=(technique,)), tiny_taskmodel("bert", task.spec))
    record = result.lineage[-1]
    assert record.facts == {"linear": 13, "tables": 2}
    packed = [m for m in result.model.modules() if isinstance(m, (PackedLinear, PackedEmbedding))]
    assert len(packed) == 15
    assert not any(path.startswith("bert.encoder.layer.0") and isinstance(m, PackedLinear)
                   for path, m in result.model.named_modules())  # fmt: skip
    weights = sum(m.rows * m.columns for m in packed)
    assert record.size_before["bytes"] - record.size_after["bytes"] == weights * 4 - weights // 2 - weights // 32 * 2
    for measure in ("parameters", "macs"):
        assert record.size_after[measure] == record.size_before[measure]
    plain = run(Recipe(steps=(WeightQuantization(embeddings=False),)), tiny_taskmodel("bert", task.spec))
    assert plain.lineage[-1].facts == {"linear": 19, "tables": 0}


def test_a_shared_layer_stays_shared():
    model = tiny_taskmodel("bert", tiny_task("classification").spec)
    every = model.model.bert.encoder.layer
    every[2] = every[0]
    outcome = WeightQuantization().apply(model, Inputs(), torch.Generator())
    assert outcome.facts == {"linear": 13, "tables": 2}
    assert every[2].output.dense is every[0].output.dense


TIED = {
    ("gpt2", "causal-lm"): ("transformer.wte", "lm_head"),
    ("bert", "masked-lm"): ("bert.embeddings.word_embeddings", "cls.predictions.decoder"),
    ("bart", "seq2seq"): ("model.shared", "lm_head"),
}
"""Family and kind of task: the table, and the head that has its weights."""


def with_tied_head(family, kind):
    """A model whose table and head are one, and their paths; that of BART multiplies what it looks up."""
    changes = {"scale_embedding": True} if family == "bart" else {}
    return tiny_taskmodel(family, tiny_task(kind).spec, **changes), *TIED[family, kind]


@pytest.mark.parametrize(("family", "kind"), TIED)
def test_a_tied_head_stays_tied(family, kind, tmp_path):
    source, table, head = with_tied_head(family, kind)
    examples = tiny_task(kind).validation[:6]
    result = run(Recipe(steps=(WeightQuantization(),)), source)
    for measure in ("parameters", "macs"):
        assert result.lineage[-1].size_after[measure] == result.lineage[-1].size_before[measure]
    result.save(tmp_path / "model")
    inputs = result.encoder.collate(result.encoder.encode(examples))
    answers = result.forward(inputs)
    for model in (result, load(tmp_path / "model")):
        first, other = (model.model.get_submodule(path) for path in (table, head))
        assert first.codes is other.codes
        assert first.scale is other.scale
        assert np.allclose(model.forward(inputs), answers, atol=1e-6)
    unpacked = copy.deepcopy(source)
    for path, _ in source.model.named_modules(remove_duplicate=False):
        if isinstance(result.model.get_submodule(path), PackedLinear | PackedEmbedding):
            unpacked.model.get_submodule(path).weight.data = result.model.get_submodule(path).matrix()
    assert np.allclose(unpacked.forward(inputs), answers, atol=1e-5)
    export(result, tmp_path / "export", "onnx" if kind == "masked-lm" else "generator", agreement=0.0)
    size = first.codes.numel()
    for file in (tmp_path / "export").glob("*.onnx"):
        tables = [one for one in onnx.load(file).graph.initializer if len(one.raw_data) == size]
        assert len(tables) == 1, "the codes stand in the file once"
    exported = Runtime(tmp_path / "export")
    if kind == "masked-lm":
        assert np.allclose(exported.forward(inputs), answers, atol=1e-4)
        return
    for one, other in zip(exported.predict(examples).answers, predict(result, examples).answers, strict=True):
        assert one == {**other, **({"loss": pytest.approx(other["loss"])} if kind == "causal-lm" else {})}


@pytest.mark.parametrize(("family", "kind"), TIED)
def test_a_head_whose_table_stays_in_float_stays_too(family, kind, tmp_path):
    source, table, head = with_tied_head(family, kind)
    tables = {path for path, module in source.model.named_modules() if isinstance(module, nn.Embedding)}
    for technique in (WeightQuantization(embeddings=False), WeightQuantization(exclude=tuple(tables))):
        result = run(Recipe(steps=(technique,)), source)
        assert result.model.get_submodule(head).weight is result.model.get_submodule(table).weight
        assert result.lineage[-1].facts["tables"] == 0
        result.save(tmp_path / str(technique.embeddings))
        assert load(tmp_path / str(technique.embeddings)).digest == result.digest


def test_what_is_tied_stays_so_in_another_type_and_in_a_copy():
    source, table, head = with_tied_head("gpt2", "causal-lm")
    network = run(Recipe(steps=(WeightQuantization(),)), source).model
    for moved in (network.half(), network.float(), copy.deepcopy(network)):
        assert moved.get_submodule(table).scale is moved.get_submodule(head).scale


@pytest.mark.parametrize(("name", "block"), in_turn(["int4", "int8"], [16, 32], 2))
def test_the_export_packs_the_weights_and_answers_alike(name, block, tmp_path):
    task = tiny_task("classification")
    source = tiny_taskmodel("bert", task.spec)
    result = run(Recipe(steps=(WeightQuantization(format=name, block_size=block),)), source)
    report = export_onnx(result, tmp_path / "q", examples=task.validation)
    assert (report.exporter, report.scheme) == ("tracer", "fp32")
    assert report.gate.max_abs_difference < 1e-5
    graph = onnx.load(tmp_path / "q" / "model.onnx").graph
    products = [node for node in graph.node if node.op_type == "MatMulNBits"]
    assert len(products) == (19 if name == "int4" else 0)
    assert all(onnx.helper.get_node_attr_value(node, "block_size") == block for node in products)
    export_onnx(source, tmp_path / "f", examples=task.validation)
    macs = [onnx_size(tmp_path / folder / "model.onnx", 32).macs for folder in ("q", "f")]
    assert macs[0] == macs[1], "packing takes no multiplication away"
    errors = np.abs(
        np.stack(predict(result, task.validation).logits) - np.stack(predict(source, task.validation).logits)
    )
    assert 0 < errors.mean() < (0.05 if name == "int4" else 0.005)


def test_a_pattern_that_names_nothing_is_refused():
    model = tiny_taskmodel("bert", tiny_task("classification").spec)
    (problem,) = WeightQuantization(exclude=("clasifier",)).check(model, Inputs())
    assert problem.startswith("quantize.weights: exclude: no module is called 'clasifier'")
