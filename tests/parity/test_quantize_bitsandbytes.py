"""What bitsandbytes makes of weights, by slow loops and the numbers of the papers; and that it is a standard folder."""

import numpy as np
import pytest
import torch

from compress import load
from compress.artifact.artifact import Artifact
from compress.engine.steps import run
from compress.export import export_onnx
from compress.prune.magnitude import MagnitudePruning
from compress.quantize.bitsandbytes import BitsAndBytes, count_packed
from compress.recipe import Recipe
from compress.share.layers import LayerSharing
from eval.errors import UserError
from eval.inference import predict
from teachers.anatomy.encoder import layer_parts, layers
from teachers.taskmodel import TaskModel
from tests.tiny import tiny_task, tiny_taskmodel

NF4 = [-1, -0.69619, -0.52507, -0.39492, -0.28444, -0.18477, -0.09105, 0]
NF4 += [0.07958, 0.16093, 0.24611, 0.33792, 0.44071, 0.56262, 0.72296, 1]


def packed(fields, width=64):
    task = tiny_task("classification")
    model = tiny_taskmodel("bert", task.spec, hidden_size=width, intermediate_size=2 * width)
    return task, model, run(Recipe(steps=(BitsAndBytes(**fields),)), model, dry_run_first=False)


def query(model):
    return layer_parts(model.model, layers(model.model)[0])["query"]


def test_nf4_takes_the_nearest_of_sixteen_levels_of_each_block():
    from bitsandbytes.functional import dequantize_4bit

    _, model, result = packed({"format": "nf4", "double": False})
    weight, made = query(model).weight.detach(), query(result)
    decoded = dequantize_4bit(made.weight.data, made.weight.quant_state)
    for block, found in zip(weight.reshape(-1, 64)[:8], decoded.reshape(-1, 64)[:8], strict=True):
        largest = float(block.abs().max())
        for value, code in zip(block.tolist(), found.tolist(), strict=True):
            nearest = min(NF4, key=lambda level: abs(level - value / largest))
            assert code == pytest.approx(nearest * largest, abs=2e-4 * largest)


def test_the_numbers_of_the_sheet():
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    block = torch.zeros(64)
    block[:4] = torch.tensor([0.5, -2.0, 1.0, 0.1])
    codes, state = quantize_4bit(block, blocksize=64, quant_type="nf4")
    first = [(int(codes.reshape(-1)[i // 2]) >> (4, 0)[i % 2]) & 15 for i in range(4)]
    assert first == [10, 0, 12, 8]
    found = dequantize_4bit(codes, state).reshape(-1)[:4]
    assert torch.allclose(found, torch.tensor([0.492225, -2.0, 0.881420, 0.159161]), atol=1e-4)


def test_the_numbers_of_the_sheet_for_int8():
    from bitsandbytes.nn import Linear8bitLt

    inputs, weight = torch.tensor([[0.5, -1.0, 8.0]]), torch.tensor([[1.0, 2.0], [-1.0, 0.5], [0.25, -0.5]])
    made = Linear8bitLt(3, 2, bias=False, has_fp16_weights=False, threshold=6.0)
    made.load_state_dict({"weight": weight.T.contiguous()})
    found = made.to("cpu")(inputs)
    assert made.weight.data[:, :2].tolist() == [[127, -127], [127, 32]], "the sheet's codes"
    decoded = made.weight.data * made.state.SCB[:, None] / 127
    assert torch.allclose(found, inputs @ decoded.T), "on a CPU inputs are not rounded, and outliers are no exception"
    assert torch.allclose(found, torch.tensor([[3.503937, -3.496063]]), atol=8 * 2 / 254)  # a rounded weight times 8


def test_int8_rounds_each_output_by_its_largest_weight():
    _, model, result = packed({"format": "int8"})
    weight, made = query(model).weight.detach(), query(result)
    scale = weight.abs().amax(dim=1)
    assert torch.allclose(made.weight.SCB if made.weight.SCB is not None else made.state.SCB, scale, rtol=1e-3)
    codes = torch.round(127 * weight / scale[:, None])
    assert (made.weight.data.float() - codes).abs().max() <= 1  # it rounds in 16 bits


@pytest.mark.parametrize("form", ["int8", "nf4", "fp4"])
def test_it_is_smaller_answers_alike_and_loads_as_stock(form, tmp_path):
    from transformers import AutoModelForSequenceClassification

    task, model, result = packed({"format": form})
    assert count_packed(result.model) == 3 * 6
    assert result.size().bytes < 0.8 * Artifact.from_model(model).size().bytes
    assert result.size().macs == model.size().macs
    assert result.size().parameters == model.size().parameters
    own = np.stack(predict(result, task.validation[:8]).logits)
    plain = np.stack(predict(model, task.validation[:8]).logits)
    assert 0 < abs(own - plain).max() < 0.5 * np.ptp(plain) + 0.1
    result.save(tmp_path / "a")
    again = load(tmp_path / "a")
    assert again.digest == result.digest
    assert np.array_equal(np.stack(predict(again, task.validation[:8]).logits), own)
    stock = AutoModelForSequenceClassification.from_pretrained(tmp_path / "a", dtype=torch.float32)
    assert count_packed(stock) == 3 * 6
    assert isinstance(result, TaskModel)


def test_what_it_cannot_do_is_said(tmp_path):
    task, _, result = packed({})
    with pytest.raises(UserError, match="bitsandbytes runs in torch alone"):
        export_onnx(result, tmp_path / "x", examples=task.validation)
    model = tiny_taskmodel("bert", task.spec)
    every = model.model.bert.encoder.layer
    every[1] = every[0]
    with pytest.raises(UserError, match="works on networks that standard transformers holds"):
        run(Recipe(steps=(BitsAndBytes(),)), model)


@pytest.mark.parametrize(
    "earlier", [LayerSharing(stock=True, recover=False), MagnitudePruning(stock=True, schedule="once", recover=False)]
)
def test_it_follows_a_step_that_leaves_a_standard_model(earlier, tmp_path):
    model = tiny_taskmodel("bert", tiny_task("classification").spec)
    result = run(Recipe(steps=(earlier, BitsAndBytes())), model)
    assert count_packed(result.model) == result.lineage[-1].facts["packed"] > 0
    assert load(result.save(tmp_path / "a")).digest == result.digest
