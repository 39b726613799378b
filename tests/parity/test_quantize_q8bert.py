"""Q8BERT against the numbers of the paper's scheme by hand, integer arithmetic in slow loops, and its own export."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from compress import load
from compress.engine.steps import run
from compress.export import export_onnx
from compress.export.check.arithmetic import in_integers
from compress.export.runtime.answering import Runtime
from compress.modules.fake_quant import (
    FakeQuantEmbedding,
    FakeQuantLinear,
    Int8Embedding,
    Int8Linear,
    MovingRange,
    fake_quantize,
    in_float,
    steps_of,
)
from compress.quantize.q8bert import Q8Bert
from compress.quantize.smoothing import smoothing_factors
from compress.recipe import Recipe
from compress.technique import Inputs
from eval.cost.size import file_bytes
from eval.errors import UserError
from eval.inference import predict
from teachers.signals.model_teacher import ModelTeacher
from teachers.taskmodel import weights_digest
from tests.avx2 import check_exact, saturating_product
from tests.tiny import in_turn, tiny_task, tiny_taskmodel
from tests.unit.test_training import StopsAt

X = torch.tensor([-1, -0.3, 0, 0.5, 2])


def layer(levels=127, rounds_output=False, per_channel=False):
    linear = nn.Linear(2, 2, bias=False)
    linear.weight = nn.Parameter(torch.tensor([[0.5, -1], [0.25, 0.75]]))
    made = FakeQuantLinear(linear, levels, per_channel, 0.9, rounds_output)
    made.input_range.largest.fill_(2.0)
    return made


def trained(model, task, **fields):
    inputs = Inputs(train=task.train, validation=task.validation)
    technique = Q8Bert(max_steps=6, batch_size=8, learning_rate=1e-3, **fields)
    return run(Recipe(seed=3, steps=(technique,)), model, inputs, dry_run_first=False)


# ---- the scheme, by hand


def test_five_numbers():
    step = torch.tensor(2 / 127)
    q = steps_of(X, step)
    assert q.tolist() == [-64, -19, 0, 32, 127]
    rounded = fake_quantize(X, torch.tensor(2.0))
    torch.testing.assert_close(rounded, torch.tensor([-1.007874, -0.299213, 0, 0.503937, 2]), atol=1e-6, rtol=0)
    assert (rounded - X).abs().max() <= 0.5 / 63.5 + 1e-7
    assert torch.equal(fake_quantize(rounded, torch.tensor(2.0)), rounded)
    assert torch.equal(steps_of(-X, step), -q)
    assert steps_of(torch.tensor([-9.0, 9.0]), step).tolist() == [-127, 127], "-128 is never used"


def test_zeros_stay_zeros():
    assert not fake_quantize(torch.zeros(3), torch.zeros(())).any()


def test_the_gradient_passes_unchanged_even_at_the_ends():
    x = torch.tensor([-5.0, -1.0, 0.3, 2.0, 7.0], requires_grad=True)
    fake_quantize(x, torch.tensor(2.0)).sum().backward()
    assert x.grad.tolist() == [1, 1, 1, 1, 1]


@pytest.mark.parametrize("decay", [0.0, 0.9, 0.9999])
def test_the_range_is_the_weighted_mean_of_all_batches(decay):
    """Adam's correction, said a second way: batch i of t weighs decay^(t - i), and weights sum to 1."""
    moving = MovingRange(decay).eval()
    torch.testing.assert_close(moving(X), fake_quantize(X, torch.tensor(2.0)))
    assert moving.largest == 0, "only training moves it, and before it the tensor's own range is used"
    moving.train()
    seen = []
    for scale in (1.0, 2.0, 0.0, 5.0):
        moving(scale * X)
        seen.append(2.0 * scale)
        weights = [decay ** (len(seen) - 1 - place) for place in range(len(seen))]
        expected = sum(weight * value for weight, value in zip(weights, seen, strict=True)) / sum(weights)
        assert moving.largest.item() == pytest.approx(expected, rel=1e-6, abs=1e-7)
    assert set(moving.state_dict()) == {"largest", "observations"}


def test_a_first_batch_that_is_unlike_the_others_does_not_decide_the_range():
    """The paper's decay over 79 optimizer steps: within 2% of the batches' mean, not at the first batch's 20."""
    moving = MovingRange(0.9999).train()
    moving(10 * X)
    for _ in range(78):
        moving(X)
    assert moving.largest.item() == pytest.approx((20 + 78 * 2) / 79, rel=0.02)


def test_a_layer_of_two_by_two():
    made = layer()
    x = torch.tensor([[2.0, -1.0]])
    expected = torch.tensor([[2.015748, -0.249984]])
    torch.testing.assert_close(made.eval()(x), expected, atol=1e-6, rtol=0)
    frozen = made.frozen({})
    assert frozen.codes.tolist() == [[64, -127], [32, 95]]
    assert steps_of(x, frozen.input_step).tolist() == [[127, -64]]
    sums = steps_of(x, frozen.input_step) @ frozen.codes.float().T
    assert sums.tolist() == [[16256, -2016]]
    torch.testing.assert_close(frozen(x), expected, atol=1e-6, rtol=0)


def test_seven_bits_and_one_range_an_output():
    assert layer(levels=64).frozen({}).codes.tolist() == [[32, -64], [16, 48]]
    frozen = layer(per_channel=True).frozen({})
    assert frozen.codes.tolist() == [[64, -127], [42, 127]]
    torch.testing.assert_close(frozen.scale, torch.tensor([[1 / 127], [0.75 / 127]]))


def test_a_frozen_layer_is_slow_integer_arithmetic():
    generator = torch.Generator().manual_seed(0)
    made = FakeQuantLinear(nn.Linear(24, 5), 127, False, 0.9, True)
    x = torch.randn(7, 24, generator=generator)
    made.train()(x)
    frozen = made.frozen({})
    s_x, s_w, s_y = (float(step) for step in (frozen.input_step, frozen.scale, frozen.output_step))
    q_w, q_b = frozen.codes.tolist(), (frozen.bias.detach().double() / (s_x * s_w)).round().long().tolist()
    assert torch.allclose(frozen.bias.double(), torch.tensor(q_b).double() * (s_x * s_w), rtol=1e-6)
    found = frozen(x)
    for row in range(7):
        q_x = [min(127, max(-127, round(float(value) / s_x))) for value in x[row]]
        for out in range(5):
            total = sum(a * b for a, b in zip(q_x, q_w[out], strict=True)) + q_b[out]
            q_y = min(127, max(-127, round(total * s_x * s_w / s_y)))
            assert found[row, out].item() == pytest.approx(q_y * s_y, abs=1e-6)


def test_a_table_is_rounded_row_by_row_of_its_range():
    table = nn.Embedding(3, 2)
    table.weight = nn.Parameter(torch.tensor([[1.0, -0.5], [0.01, 0.004], [2.0, 0.0]]))
    frozen = FakeQuantEmbedding(table, 127, False).frozen({})
    assert frozen.codes.tolist() == [[64, -32], [1, 0], [127, 0]]
    by_row = FakeQuantEmbedding(table, 127, True)
    assert by_row.frozen({}).codes.tolist() == [[127, -64], [127, 51], [127, 0]]
    ids = torch.tensor([[2, 1], [0, 0]])
    torch.testing.assert_close(by_row(ids), by_row.frozen({})(ids))


# ---- smoothing


def test_smoothing_of_two_channels():
    """max|x| of 8 and 2, max|w| of 0.5 and 1, a = 1/2: 4 and 2 to the half, rounded to a power of 2."""
    linear = nn.Linear(2, 2, bias=False)
    linear.weight = nn.Parameter(torch.tensor([[0.5, 0.25], [0.125, -1.0]]))
    made = FakeQuantLinear(linear, 127, True, 0.9, False, torch.tensor([4.0, 2.0]))
    x = torch.tensor([[8.0, -1.0], [-2.0, 2.0]])
    made.train()(x)
    assert made.input_range.largest == 2.0, "8 / 4, where 2 / 2 is smaller"
    frozen = made.frozen({})
    # Rows of W by columns: [0.5 * 4, 0.25 * 2] of 2.0 and [0.125 * 4, -1 * 2] of 2.0, 127 steps each.
    assert frozen.codes.tolist() == [[127, 32], [32, -127]]
    q_x = [[127, -32], [-32, 64]]
    assert steps_of(x / frozen.smooth, frozen.input_step).tolist() == q_x
    sums = torch.tensor(q_x).float() @ frozen.codes.float().T
    torch.testing.assert_close(frozen(x), sums * (2 / 127) * (2 / 127), atol=1e-6, rtol=0)
    torch.testing.assert_close(frozen(x), made.eval()(x), atol=1e-6, rtol=0)
    torch.testing.assert_close(frozen.weight, frozen.codes * (2 / 127) / torch.tensor([4.0, 2.0]))


def test_factors_are_powers_of_two_that_layers_with_one_input_share():
    task = tiny_task()
    student = tiny_taskmodel("bert", task.spec)
    layers = [part for part in student.model.modules() if isinstance(part, nn.Linear)]
    seen = {}
    for layer in layers:
        layer.register_forward_pre_hook(lambda layer, x: seen.setdefault(layer, []).append(x[0]))
    factors = smoothing_factors(student, layers, task.train[:8], 0.75)
    inputs = student.encoder.collate(student.encoder.encode(task.train[:8]))
    real = torch.from_numpy(inputs["attention_mask"]).bool()
    for layer, found in factors.items():
        assert torch.equal(torch.exp2(torch.log2(found).round()), found)
        (x,) = seen[layer]
        largest = (x[real] if x.ndim == 3 else x).abs().amax(0)
        alike = [other for other in layers if seen[other][0] is x]
        rows = torch.stack([other.weight.abs().amax(0) for other in alike]).amax(0)
        exact = largest**0.75 / rows**0.25
        assert ((found / exact).log2().abs() <= 0.5 + 1e-5).all()
    first = student.model.bert.encoder.layer[0].attention.self
    assert torch.equal(factors[first.query], factors[first.value])
    assert {len(found) for found in factors.values()} == {32, 64}


@pytest.mark.parametrize("smooth", [None, 0.75])
def test_a_neuron_that_stands_out_takes_no_steps_from_the_others(smooth):
    """With one neuron a thousand times as active, the answers move by the half; smoothed, by a hundredth."""
    task = tiny_task()
    student = tiny_taskmodel("bert", task.spec)
    for layer in student.model.bert.encoder.layer:
        with torch.no_grad():
            layer.intermediate.dense.bias[0] = 1000.0
            layer.output.dense.weight[:, 0] /= 1000.0
    before = np.stack(predict(student, task.validation).logits)
    Q8Bert(smooth=smooth).prepare(student, task.train)
    moving = [part for part in student.model.modules() if isinstance(part, MovingRange)]
    for part in moving:
        part.train()
    predict(student, task.train)
    for part in moving:
        part.eval()
    moved = np.abs(np.stack(predict(student, task.validation).logits) - before).mean() / np.abs(before).mean()
    assert moved > 0.1 if smooth is None else moved < 0.1, moved


# ---- the technique


def test_weights_are_integers_of_seven_or_eight_bits():
    task = tiny_task()
    for reduce_range, largest in ((True, 64), (False, 127)):
        result = trained(tiny_taskmodel("bert", task.spec), task, reduce_range=reduce_range)
        layers = [part for part in result.model.modules() if isinstance(part, Int8Linear)]
        tables = [part for part in result.model.modules() if isinstance(part, Int8Embedding)]
        assert (len(layers), len(tables)) == (3 * 6 + 2, 3)
        assert {int(part.codes.abs().max()) for part in layers} == {largest}
        assert {int(part.codes.abs().max()) for part in tables} == {127}
        assert not any(isinstance(part, nn.Linear | nn.Embedding) for part in result.model.modules())
        assert [part.rounds_output for part in layers] == [*[True, True, True, False, False, False] * 3, False, False]


def test_head_embeddings_and_modules_can_stay_in_float():
    task = tiny_task()
    result = trained(
        tiny_taskmodel("bert", task.spec), task, head=False, embeddings=False, exclude=("bert.encoder.layer.1",)
    )
    assert result.lineage[-1].facts["linear"] == 3 * 6 + 2 - 6 - 1
    assert result.lineage[-1].facts["tables"] == 0
    assert type(result.model.classifier) is nn.Linear
    assert type(result.model.bert.encoder.layer[1].output.dense) is nn.Linear


def test_a_tied_decoder_keeps_the_codes_of_the_table(tmp_path):
    task = tiny_task("masked-lm")
    result = trained(tiny_taskmodel("bert", task.spec), task)
    table, decoder = result.model.bert.embeddings.word_embeddings, result.model.cls.predictions.decoder
    assert table.codes is decoder.codes
    result.save(tmp_path / "a")
    again = load(tmp_path / "a")
    assert again.digest == result.digest
    assert again.model.cls.predictions.decoder.codes is again.model.bert.embeddings.word_embeddings.codes
    plain = in_float(again.model)
    assert plain.cls.predictions.decoder.weight is plain.bert.embeddings.word_embeddings.weight


def test_ranges_come_back_when_a_killed_training_goes_on(tmp_path, monkeypatch):
    task = tiny_task()
    recipe = Recipe(steps=(Q8Bert(epochs=2, batch_size=8, decay=0.9, checkpoint_seconds=0),))
    inputs = Inputs(train=task.train, validation=task.validation)
    whole = run(recipe, tiny_taskmodel("bert", task.spec), inputs, dry_run_first=False)
    monkeypatch.setattr(Q8Bert, "make_objective", lambda *_: StopsAt(4))
    with pytest.raises(KeyboardInterrupt):
        run(recipe, tiny_taskmodel("bert", task.spec), inputs, folder=tmp_path, dry_run_first=False)
    monkeypatch.undo()
    again = run(recipe, tiny_taskmodel("bert", task.spec), inputs, folder=tmp_path, dry_run_first=False)
    assert again.digest == whole.digest


@pytest.mark.parametrize(("per_channel", "share"), [(False, 0.26), (True, 0.27)])
def test_the_saved_folder_is_a_quarter(per_channel, share, tmp_path):
    """A scale for each output and a factor for each input add a hundredth at a width of 128."""
    task = tiny_task()
    model = tiny_taskmodel("bert", task.spec, hidden_size=128, intermediate_size=512)
    result = trained(model, task, per_channel=per_channel)
    result.save(tmp_path / "a")
    size = result.lineage[-1]
    assert size.size_after["parameters"] == size.size_before["parameters"]
    assert size.size_after["bytes"] < share * size.size_before["bytes"]
    assert file_bytes(tmp_path / "a") < (share + 0.02) * size.size_before["bytes"]


def test_a_teacher_heals():
    task = tiny_task()
    teacher = ModelTeacher(tiny_taskmodel("bert", task.spec, seed=1))
    technique = Q8Bert(objective={"distill.logits": {}}, max_steps=4, batch_size=8)
    result = run(
        Recipe(steps=(technique,)), tiny_taskmodel("bert", task.spec), Inputs(train=task.train, teacher=teacher)
    )
    assert "distill.logits.soft" in result.lineage[-1].facts["history"][-1]["terms"]


def test_it_trains_in_float32_whatever_accelerate_was_launched_with(monkeypatch):
    task = tiny_task()
    results = []
    for asked in ("no", "bf16"):
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", asked)
        results.append(trained(tiny_taskmodel("deberta-v2", task.spec), task))
    assert weights_digest(results[0].model) == weights_digest(results[1].model)


def test_what_cannot_be_is_refused_by_name():
    task = tiny_task()
    (problem,) = Q8Bert(exclude=("clasifier",)).check(tiny_taskmodel("bert", task.spec), Inputs())
    assert "did you mean 'classifier'" in problem
    (problem,) = Q8Bert(precision="bf16").check(tiny_taskmodel("bert", task.spec), Inputs())
    assert problem.startswith("quantize.q8bert: precision bf16 is coarser than steps of 8 bits")
    result = trained(tiny_taskmodel("bert", task.spec), task)
    with pytest.raises(UserError, match="made of integers already"):
        run(Recipe(steps=(Q8Bert(),)), result, Inputs(train=task.train))


EVERY = {"query", "key", "value", "attention.output.dense", "intermediate.dense", "output.dense", "pooler.dense"}


@pytest.mark.parametrize(
    ("field", "rounded"),
    [
        ("attention", {"query", "key", "value"}),
        (
            "all",
            EVERY,
        ),
        ("none", set()),
        (
            True,
            EVERY,
        ),
        (False, set()),
    ],
)
def test_which_outputs_are_rounded(field, rounded):
    student = tiny_taskmodel("bert", tiny_task().spec)
    Q8Bert(requantize_output=field).prepare(student)
    layers = {path: part for path, part in student.model.named_modules() if isinstance(part, FakeQuantLinear)}
    assert all(part.input_range is not None for part in layers.values())
    for path, part in layers.items():
        assert (part.output_range is not None) == any(path.endswith(f".{name}") for name in rounded), path
    assert {path for path, part in layers.items() if part.output_range is None} >= {"classifier"}


# ---- the export


EXPORTED = ("bert", "albert", "distilbert", "deberta-v2", "modernbert", "mobilebert", "xlnet")


@pytest.mark.parametrize(
    ("family", "requantize_output"), in_turn(EXPORTED, ("attention", "all", "none"), 3, always=("bert",))
)
def test_the_export_computes_the_same_integers(family, requantize_output, tmp_path):
    """Where no number lies on the edge of a step, all is equal; where one does, the answer moves a little."""
    task = tiny_task()
    result = trained(tiny_taskmodel(family, task.spec), task, requantize_output=requantize_output)
    result.save(tmp_path / "a")
    report = export_onnx(load(tmp_path / "a"), tmp_path / "int8", examples=task.validation)
    assert report.scheme == "int8"
    assert report.quantized["float"] == []
    assert report.gate.agreement == 1.0
    assert report.gate.max_abs_difference < 0.05 * report.gate.scale
    assert report.gate.mean_abs_difference < 0.005 * report.gate.scale
    manifest = json.loads((tmp_path / "int8" / "export.json").read_text())
    assert manifest["int8"]["activations"] == "static"
    assert bool(manifest["int8"]["outputs"]) == (requantize_output != "none")
    inputs = result.encoder.collate(result.encoder.encode(task.validation[:4]))
    assert check_exact(tmp_path / "int8" / "model.onnx", inputs) == report.quantized["linear"]


@pytest.mark.parametrize("per_channel", [False, True])
def test_codes_of_the_export_are_those_of_the_model(per_channel, tmp_path):
    import onnx

    task = tiny_task()
    result = trained(tiny_taskmodel("bert", task.spec), task, per_channel=per_channel)
    export_onnx(result, tmp_path / "int8", examples=task.validation)
    graph = in_integers(onnx.load(str(tmp_path / "int8" / "model.onnx"))).graph
    arrays = {weight.name: onnx.numpy_helper.to_array(weight) for weight in graph.initializer}
    products = [arrays[node.input[1]].T for node in graph.node if node.op_type == "MatMulInteger"]
    for path, part in result.model.named_modules():
        if isinstance(part, Int8Linear):  # queries, keys and values may be one product
            codes, width = part.codes.numpy(), part.out_features
            blocks = [found[i : i + width] for found in products for i in range(0, len(found), width)]
            assert any(np.array_equal(block, codes) for block in blocks), path
    rows = next(array for name, array in arrays.items() if name.endswith("_rows") and len(array) > 64)
    codes = result.model.bert.embeddings.word_embeddings.codes.numpy()
    assert rows.dtype == np.int8
    if rows.shape == codes.shape:
        np.testing.assert_array_equal(rows, codes)


@pytest.mark.parametrize("reduce_range", [True, False])
def test_a_table_that_is_tied_has_in_the_export_the_codes_of_the_model(reduce_range, tmp_path):
    import onnx

    task = tiny_task("masked-lm")
    result = trained(tiny_taskmodel("bert", task.spec), task, reduce_range=reduce_range)
    export_onnx(result, tmp_path / "int8", examples=task.validation)
    graph = onnx.load(str(tmp_path / "int8" / "model.onnx")).graph
    arrays = {weight.name: onnx.numpy_helper.to_array(weight) for weight in graph.initializer}
    codes = result.model.bert.embeddings.word_embeddings.codes.numpy()
    (rows,) = (array for name, array in arrays.items() if name.endswith("_rows") and array.shape == codes.shape)
    np.testing.assert_array_equal(rows, codes)
    assert np.abs(codes).max() == (64 if reduce_range else 127)


def test_a_bias_beside_a_row_of_zeros_stays():
    linear = nn.Linear(4, 3)
    with torch.no_grad():
        linear.weight[1] = 0.0
        linear.bias.copy_(torch.tensor([0.25, -1.5, 0.5]))
    made = FakeQuantLinear(linear, 127, True, 0.9, False)
    made.train()(torch.randn(5, 4))
    frozen = made.frozen({})
    assert frozen.bias[1].item() == -1.5
    np.testing.assert_allclose(frozen.bias.detach(), [0.25, -1.5, 0.5], atol=1e-3)
    np.testing.assert_allclose(frozen(torch.randn(2, 4))[:, 1].detach(), -1.5)


def test_a_float_export_rounds_as_the_model_does(tmp_path):
    task = tiny_task()
    result = trained(tiny_taskmodel("distilbert", task.spec), task)
    report = export_onnx(result, tmp_path / "fp32", int8=False, examples=task.validation)
    assert (report.scheme, report.gate.agreement) == ("fp32", 1.0)
    assert report.gate.mean_abs_difference < 0.005 * report.gate.scale
    found = np.stack(Runtime(tmp_path / "fp32").predict(task.validation).logits)
    plain = np.stack(predict(result, task.validation).logits)
    assert np.abs(found - plain).mean() < 0.005 * np.abs(plain).max()


def test_eight_bit_weights_may_saturate_and_seven_bit_weights_never():
    u = np.full((1, 64), 255, np.uint8)
    for largest, exact in ((127, False), (64, True)):
        for sign in (1, -1):
            q = np.full((64, 1), sign * largest, np.int8)
            assert (saturating_product(u, q)[0, 0] == 64 * 255 * sign * largest) == exact
