"""Packed weights: every code comes back, the bytes are what the bits say, and ONNX computes the same."""

import json

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from compress import load
from compress.artifact.artifact import Artifact
from compress.artifact.modified_architecture import load_restructured
from compress.artifact.structure import structure_of
from compress.export import export_onnx
from compress.modules.low_bit import BITS, pack, row_bytes, unpack
from compress.modules.packed import PackedEmbedding, PackedLinear
from eval.cost.size import file_bytes, model_size
from eval.errors import UserError
from eval.inference import predict
from tests.tiny import tiny_task, tiny_taskmodel


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("columns", [1, 7, 8, 33])
def test_codes_are_packed_and_unpacked(bits, columns):
    codes = torch.randint(0, 2**bits, (5, columns), generator=torch.Generator().manual_seed(bits), dtype=torch.uint8)
    packed = pack(codes, bits)
    assert packed.shape == (5, row_bytes(columns, bits))
    assert packed.dtype == torch.uint8
    assert torch.equal(unpack(packed, bits, columns), codes)


def test_the_layout_of_bytes():
    assert pack(torch.tensor([[1, 2, 15, 4, 5]]), 4).tolist() == [[0x21, 0x4F, 0x05]]
    assert pack(torch.tensor([[3, 0, 1, 2]]), 2).tolist() == [[0b10_01_00_11]]
    assert pack(torch.tensor([[7, 4, 1, 0]]), 3).tolist() == [[0b00_01_00_11, 0b0011]]
    assert (row_bytes(384, 3), row_bytes(384, 4), row_bytes(384, 2)) == (144, 192, 96)


@pytest.mark.parametrize("bits", BITS)
def test_a_layer_unpacks_to_the_nearest_values(bits):
    torch.manual_seed(bits)
    linear = nn.Linear(20, 9)
    packed = PackedLinear.of(linear, bits=bits, height=2)
    weight = linear.weight.detach()
    for row in range(9):
        group = weight[row // 2 * 2 : row // 2 * 2 + 2]
        step = (group.max() - group.min()) / (2**bits - 1)
        grid = group.min() + step * torch.arange(2**bits)
        nearest = grid[(weight[row][:, None] - grid).abs().argmin(dim=1)]
        assert torch.allclose(packed.matrix()[row], nearest, atol=1e-6)
    x = torch.randn(3, 20)
    assert torch.allclose(packed(x), x @ packed.matrix().T + linear.bias, atol=1e-5)
    assert packed.bias is linear.bias
    assert packed.codes.numel() == 9 * row_bytes(20, bits)
    assert packed.scale.numel() == packed.offset.numel() == 5


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("ranges", ["float32", "float16"])
def test_blocks_are_symmetric(bits, ranges):
    torch.manual_seed(0)
    table = nn.Embedding(6, 40, padding_idx=0)
    packed = PackedEmbedding.of(table, bits=bits, width=16, symmetric=True, ranges=ranges)
    assert (packed.scale.shape, packed.offset, packed.padding_idx) == ((6, 3), None, 0)
    block = table.weight.detach()[4, 16:32]
    scale = (block.abs().max() / (2 ** (bits - 1) - 1)).to(packed.scale.dtype).float()
    assert torch.allclose(packed.weight[4, 16:32], (block / scale).round() * scale, atol=1e-6)
    assert not packed.weight[0].any(), "zeros stay zeros"
    ids = torch.tensor([[4, 0], [5, 5]])
    assert torch.equal(packed(ids), packed.weight[ids])


def test_it_counts_weights_and_not_bytes():
    packed = PackedLinear.of(nn.Linear(64, 32), bits=2, height=4)
    size = model_size(packed, None)
    assert size.parameters == 64 * 32 + 32
    assert size.bytes == 64 * 32 // 4 + 2 * 8 * 4 + 32 * 4


def packed_model(**packing):
    task = tiny_task("classification")
    model = tiny_taskmodel("bert", task.spec)
    for path, module in list(model.model.named_modules()):
        kind = {nn.Linear: PackedLinear, nn.Embedding: PackedEmbedding}.get(type(module))
        if kind is not None and min(module.weight.shape) >= 16:
            model.model.set_submodule(path, kind.of(module, **packing))
    return task, model


PACKINGS = {
    "2 bits": {"bits": 2, "height": 2},
    "3 bits": {"bits": 3},
    "4 bits, rows": {"bits": 4, "height": 5, "ranges": "float16"},
    "4 bits, blocks": {"bits": 4, "width": 16, "symmetric": True},
    "8 bits, blocks": {"bits": 8, "width": 16, "symmetric": True, "ranges": "float16"},
    "8 bits": {"bits": 8},
}


@pytest.mark.parametrize("packing", PACKINGS.values(), ids=PACKINGS)
def test_a_packed_model_is_saved_and_exported(packing, tmp_path):
    task, model = packed_model(**packing)
    artifact = Artifact.from_model(model)
    artifact.save(tmp_path / "a")
    again = load(tmp_path / "a")
    assert (again.digest, again.size()) == (artifact.digest, artifact.size())
    assert abs(file_bytes(tmp_path / "a") - model.size().bytes) < 12_000, "the rest is the header"
    expected = np.stack(predict(model, task.validation).logits)
    assert np.array_equal(np.stack(predict(again, task.validation).logits), expected)
    report = export_onnx(model, tmp_path / "onnx", examples=task.validation)
    assert report.gate.max_abs_difference < 1e-4
    graph = onnx.load(tmp_path / "onnx" / "model.onnx").graph
    large = [w for w in graph.initializer if w.data_type == 1 and len(w.dims) == 2 and np.prod(w.dims) >= 1024]
    assert not large, "no weight is kept in float"
    products = sum(node.op_type == "MatMulNBits" for node in graph.node)
    assert products == (19 if packing.get("symmetric") and packing["bits"] == 4 else 0)


def test_damaged_codes_are_refused(tmp_path):
    _, model = packed_model(bits=4)
    Artifact.from_model(model).save(tmp_path / "a")
    file = tmp_path / "a" / "structure.json"
    values = json.loads(file.read_text())
    next(iter(values["modules"].values()))["bits"] = 2
    file.write_text(json.dumps(values))
    with pytest.raises(UserError, match=r"structure\.json says"):
        load_restructured(tmp_path / "a")
    with pytest.raises(UserError, match=r"structure\.json: is not the file that lineage\.json records"):
        load(tmp_path / "a")


def test_packed_parts_are_of_known_kinds():
    kinds = {part["kind"] for part in structure_of(packed_model(bits=4)[1].model)["modules"].values()}
    assert kinds == {"packed_linear", "packed_embedding"}
