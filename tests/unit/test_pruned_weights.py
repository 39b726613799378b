"""Pruned weights that are pruned again, trained with rounding, or packed: masks join, and 0 stays an exact 0."""

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.utils import parametrize

from compress import load
from compress.artifact.artifact import Artifact
from compress.engine.steps import run
from compress.export import export_onnx
from compress.modules.low_bit import BITS, fake_quantized, unpack
from compress.modules.masked import MaskedEmbedding, MaskedLinear, masked
from compress.modules.packed import PackedEmbedding, PackedLinear
from compress.modules.rounding import Rounding
from compress.prune.gates import gated
from compress.prune.magnitude import MagnitudePruning
from compress.prune.matrices import prunable
from compress.prune.movement import MovementPruning
from compress.prune.movement_scores import ScoredLinear, chosen
from compress.quantize.q8bert import Q8Bert
from compress.quantize.qbert import QBert
from compress.recipe import Recipe
from compress.technique import Inputs
from eval.cost.size import file_bytes, model_size
from eval.errors import UserError
from eval.inference import predict
from tests.tiny import tiny_task, tiny_taskmodel

PARTS = ("layers", "embeddings", "pooler")
SHORT = {"epochs": 2, "batch_size": 8, "learning_rate": 1e-2}


def once(sparsity, **fields):
    return MagnitudePruning(sparsity=sparsity, schedule="once", recover=False, **fields)


def after(*steps):
    """Return what steps make of a tiny model, and of the first alone."""
    task = tiny_task()
    inputs = Inputs(train=task.train, validation=task.validation)
    first = run(Recipe(steps=steps[:1]), tiny_taskmodel("bert", task.spec), inputs, dry_run_first=False)
    return run(Recipe(steps=steps[1:]), first, inputs, dry_run_first=False), first


def zeros_of(model, parts=PARTS):
    return {path: (module.weight == 0).detach() for path, module in prunable(model.model, parts).items()}


# ---- masks that join


@pytest.mark.parametrize("schedule", ["gradual", "once"])
@pytest.mark.parametrize(("second", "left"), [(0.3, 0.5), (0.5, 0.5), (0.75, 0.25)])
def test_a_second_pruning_adds_to_the_first_and_counts_it(schedule, second, left):
    again = MagnitudePruning(sparsity=second, schedule=schedule, every=2, **SHORT)
    result, first = after(once(0.5), again)
    for path, zeros in zeros_of(first).items():
        found = zeros_of(result)[path]
        assert (found | ~zeros).all(), path
        assert int((~found).sum()) == found.numel() - round((1 - left) * found.numel()), path


@pytest.mark.parametrize(("keep", "left"), [(0.7, 0.5), (0.5, 0.5), (0.2, 0.2)])
def test_movement_keeps_of_what_is_left_and_counts_it(keep, left):
    result, first = after(once(0.5), MovementPruning(keep=keep, **SHORT))
    for path, zeros in zeros_of(first, ["layers"]).items():
        found = zeros_of(result)[path]
        assert (found | ~zeros).all(), path
        assert int((~found).sum()) == round(left * found.numel()), path
    assert torch.equal(zeros_of(first)["bert.pooler.dense"], zeros_of(result)["bert.pooler.dense"])


def test_soft_movement_and_blocks_join_too():
    for fields in ({"method": "soft", "penalty": 0.0}, {"block": (8, 16), "keep": 0.5}):
        result, first = after(once(0.6), MovementPruning(**fields, **SHORT))
        assert all((zeros_of(result)[path] | ~zeros).all() for path, zeros in zeros_of(first).items())


def test_a_block_without_weights_is_the_first_to_go():
    keep = torch.ones(4, 4, dtype=torch.bool)
    keep[:2, :2] = False
    keep[2, 2] = False
    layer = ScoredLinear(masked(nn.Linear(4, 4, bias=False), keep), (2, 2), "hard", 1e-2)
    with torch.no_grad():
        layer.scores.copy_(torch.tensor([[9.0, 1.0], [2.0, 0.0]]))
    layer.choose(0.5)
    assert layer.mask.tolist() == [[False, True], [True, False]]
    layer.choose(0.75)
    assert layer.mask.tolist() == [[False, True], [True, True]], "one weight less is left in the last, which counts"
    low = chosen(torch.tensor([0.0, 0.0, -9.0]), "soft", 0.1, torch.tensor([True, False, True]))
    assert low.tolist() == [True, False, False]


@pytest.mark.parametrize("wrap", [gated, lambda layer: ScoredLinear(layer, (1, 1), "hard", 1e-2)])
def test_what_is_pruned_gets_no_gradient_in_a_layer_whose_mask_moves(wrap):
    layer = wrap(masked(nn.Linear(2, 2, bias=False), torch.tensor([[True, False], [True, True]])))
    layer(torch.tensor([1.0, 2.0])).sum().backward()
    assert layer.weight.grad.tolist() == [[1.0, 0.0], [1.0, 2.0]]
    table = gated(masked(nn.Embedding(2, 2), torch.tensor([[True, False], [True, True]])))
    table(torch.tensor([0, 1])).sum().backward()
    assert table.weight.grad.tolist() == [[1.0, 0.0], [1.0, 1.0]]


# ---- a grid with an exact 0


def test_two_bits_with_a_zero_by_hand():
    weight = torch.tensor([[-0.9], [0.0], [0.35], [2.1]])  # D = 1, z = round(0.9) = 1: the levels are -1, 0, 1, 2
    assert fake_quantized(weight, 2, height=4, zero=True).flatten().tolist() == [-1.0, 0.0, 0.0, 2.0]
    assert fake_quantized(weight, 2, height=4)[1].item() == pytest.approx(0.1), "the paper's grid has none"
    above = torch.tensor([[0.5, 1.5]])  # no pruned weight in this group: its range is widened to 0
    assert fake_quantized(above, 2, height=1, zero=True).flatten().tolist() == pytest.approx([0.5, 1.5])


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("height", [1, 3, 5])
@pytest.mark.parametrize("ranges", ["float32", "float16"])
def test_the_grid_against_a_slow_loop(bits, height, ranges):
    torch.manual_seed(bits)
    layer = masked(nn.Linear(9, 10), torch.rand(10, 9) > 0.4)
    weight = layer.weight.detach()
    found, packed = fake_quantized(weight, bits, height, zero=True), PackedLinear.of(layer, bits=bits, height=height)
    for start in range(0, 10, height):
        group = weight[start : start + height]
        low, high = min(group.min().item(), 0.0), max(group.max().item(), 0.0)
        step = (high - low) / (2**bits - 1)
        levels = [(code - round(-low / step)) * step for code in range(2**bits)]
        for w, x in zip(group.flatten().tolist(), found[start : start + height].flatten().tolist(), strict=True):
            assert x == pytest.approx(min(levels, key=lambda level, w=w: abs(level - w)), abs=1e-6)
            assert abs(x - w) <= step / 2 + 1e-6, "a grid that is moved by half a step reaches both ends"
            assert x == 0 or w != 0
    assert torch.allclose(packed.matrix(), found, atol=1e-6)
    half = PackedLinear.of(layer, bits=bits, height=height, ranges=ranges)
    assert not half.matrix()[weight == 0].any()
    table = PackedEmbedding.of(masked(nn.Embedding.from_pretrained(weight, freeze=False), weight != 0), bits=bits)
    assert not table(torch.arange(10))[weight == 0].any()
    assert torch.equal(table(torch.arange(10)), table.weight)


def test_a_weight_that_is_rounded_to_0_is_trained_and_a_pruned_one_is_not():
    layer = masked(nn.Linear(3, 2, bias=False), torch.tensor([[True, True, False], [True, True, True]]))
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[-1.0, 0.1, 0.0], [2.0, 0.9, -0.2]]))
    rounding = Rounding()
    rounding.weights(layer, 2, 2, 0.0)
    assert layer.weight.tolist() == [[-1.0, 0.0, 0.0], [2.0, 1.0, 0.0]]
    layer(torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert layer.parametrizations.weight.original.grad.tolist() == [[1.0, 2.0, 0.0], [1.0, 2.0, 3.0]]
    table = masked(nn.Embedding(2, 2), torch.tensor([[True, False], [True, True]]))
    with torch.no_grad():
        table.weight.copy_(torch.tensor([[-1.0, 0.0], [2.0, 0.1]]))
    rounding.weights(table, 2, 2, 0.0)
    table(torch.tensor([0, 1])).sum().backward()
    assert table.parametrizations.weight.original.grad.tolist() == [[1.0, 0.0], [1.0, 1.0]]
    rounding.undo()
    assert (type(layer), type(table)) == (MaskedLinear, MaskedEmbedding)
    assert not parametrize.is_parametrized(layer)


@pytest.mark.parametrize("fields", [{"bits": 2}, {"bits": (3, 2), "portions": 1, "power_steps": 2}, {"bits": 4}])
def test_qbert_keeps_what_is_pruned(fields):
    result, first = after(once(0.6), QBert(**fields, **SHORT))
    for path, zeros in zeros_of(first, ["layers", "embeddings"]).items():
        matrix = result.model.get_submodule(path).matrix()
        assert not matrix[zeros].any(), path
        assert matrix[~zeros].count_nonzero() > 0.4 * (~zeros).sum(), path
    assert result.lineage[-1].size_after["nonzero"] < result.lineage[0].size_after["nonzero"] * 0.5


def test_q8bert_rounds_what_is_pruned_and_keeps_it():
    result, first = after(once(0.6), Q8Bert(reduce_range=False, **SHORT))
    for path, zeros in zeros_of(first).items():
        codes = result.model.get_submodule(path).codes
        assert not codes[zeros].any(), path
        assert codes[~zeros].count_nonzero() > 0.9 * (~zeros).sum(), path


# ---- bytes


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("packing", [{"height": 3}, {"height": 1}, {"width": 16, "symmetric": True}])
def test_packed_codes_without_their_zeros_come_back(bits, packing):
    if "symmetric" in packing and bits < 4:
        return
    torch.manual_seed(1)
    layer = masked(nn.Linear(37, 10), torch.rand(10, 37) > 0.8)
    packed = PackedLinear.of(layer, bits=bits, **packing)
    kept, values = packed.without_zeros()
    assert torch.equal(kept, (packed.matrix() != 0).reshape(-1))
    count = int(kept.sum())
    assert torch.equal(
        unpack(values[None], bits, count)[0], unpack(packed.codes, bits, packed.stored)[:, :37].reshape(-1)[kept]
    )
    again = PackedLinear(37, 10, **arguments(packed))
    again.scale.copy_(packed.scale)
    if packed.zero is not None:
        again.zero.copy_(packed.zero)
    again.with_zeros(kept, values)
    assert torch.equal(again.codes, packed.codes)
    with pytest.raises(ValueError, match="bytes for"):
        again.with_zeros(kept, values[:-1])
    bits_and_codes = -(-370 // 8) + len(values)
    assert packed.saved_bytes("codes") == min(bits_and_codes, packed.codes.numel())
    assert model_size(packed, None).bytes == sum(b.numel() * b.element_size() for b in packed.buffers()) + 40 - (
        packed.codes.numel() - packed.saved_bytes("codes")
    )


def arguments(packed):
    sizes = ("in_features", "out_features", "bias")
    return {name: value for name, value in packed.describe().items() if name not in sizes}


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_a_model_is_saved_by_what_is_left_of_it(bits, tmp_path):
    """Of 8 bits a weight that is 0 leaves one, of 2 bits there is hardly anything to save."""
    fields = {"bits": bits, "word_bits": 8, "finetune": False}
    sizes = {}
    for sparsity in (0.0, 0.4, 0.8):
        result, _ = after(once(sparsity), QBert(**fields))
        result.save(tmp_path / f"{sparsity}")
        again = load(tmp_path / f"{sparsity}")
        assert (again.digest, again.size()) == (result.digest, result.size())
        texts = tiny_task().validation[:4]
        assert np.array_equal(predict(again, texts).logits, predict(result, texts).logits)
        sizes[sparsity] = result.size().bytes
        assert 0 < file_bytes(tmp_path / f"{sparsity}") - sizes[sparsity] < 20_000, "the rest is the header"
    assert sizes[0.0] > sizes[0.4] > sizes[0.8]


@pytest.mark.parametrize("damage", ["values", "bits", "one"])
def test_damaged_zeros_are_refused(damage, tmp_path):
    result, _ = after(once(0.8), QBert(bits=4, finetune=False))
    result.save(tmp_path / "a")
    file = tmp_path / "a" / "model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith("codes#bits"))
    if damage == "values":
        tensors[name.replace("#bits", "#values")] = tensors[name.replace("#bits", "#values")][1:].clone()
    elif damage == "bits":
        tensors[name] = tensors[name][:1].clone()
    else:
        del tensors[name]
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(UserError, match=r"codes"):
        load(tmp_path / "a")


def test_the_export_computes_the_same_and_has_the_zeros(tmp_path):
    task = tiny_task()
    for bits in (2, 4):
        result, first = after(once(0.6), QBert(bits=bits, finetune=False))
        report = export_onnx(result, tmp_path / str(bits), examples=task.validation)
        assert report.gate.max_abs_difference < 1e-4
        graph = onnx.load(tmp_path / str(bits) / "model.onnx").graph
        large = [w for w in graph.initializer if w.data_type == 1 and np.prod(w.dims) >= 1024]
        assert [w.name for w in large] == ["model.bert.pooler.dense.weight"], "no other weight is kept in float"
    artifact = Artifact.from_model(first)
    export_onnx(artifact, tmp_path / "int8", int8=True, examples=task.validation, agreement=0.0)
    graph = onnx.load(tmp_path / "int8" / "model.onnx").graph
    large = [w for w in graph.initializer if w.data_type in (2, 3) and np.prod(w.dims) >= 1024]
    codes = [numpy_helper.to_array(w) for w in large if "position_embeddings" not in w.name]  # which is not pruned
    assert len(codes) >= 15  # the queries, keys and values of a layer are one
    assert all(np.bincount(each.astype(np.int64).reshape(-1) + 128).max() >= 0.59 * each.size for each in codes)
