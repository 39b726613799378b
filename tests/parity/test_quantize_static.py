"""Static ranges against slow loops, ONNX Runtime's own quantized product, and the float model they come from."""

import math

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from compress.engine.steps import run
from compress.export import export_onnx
from compress.export.check.gate import compare
from compress.export.runtime.answering import Runtime
from compress.modules.int8_scheme import Int8, affine
from compress.quantize.calibration import Calibration, only
from compress.quantize.ranges import BINS, Histogram, divergence, least_error, percentiles, smoothing
from compress.quantize.static import StaticQuantization
from compress.recipe import Recipe
from compress.technique import Inputs
from eval.errors import UserError
from tests.avx2 import check_exact
from tests.parity.test_quantize_dynamic import graph, linear, quantized, random, weights_of
from tests.parity.test_quantize_dynamic import run as run_graph
from tests.tiny import tiny_task, tiny_taskmodel


def static(x, weight, low, high, **scheme):
    model, facts = quantized(linear(weight), activations="static", ranges={"part.0": (low, high)}, **scheme)
    return run_graph(model, x=x), facts, model


# ---- numbers computed by hand


def test_scale_and_zero_point_of_three_numbers():
    scale, zero = affine(-1, 3)
    assert scale == pytest.approx(0.0156863, abs=1e-7)
    assert zero == 64
    assert [round(x / scale) + zero for x in (-1, 0.5, 3)] == [0, 96, 255]
    assert affine(-2, 2) == (2 / 127, 128)
    assert affine(1, 3) == (3 / 255, 0), "0 is always a step"
    assert affine(0, 0)[0] > 0


def test_a_histogram_grows_and_keeps_its_size():
    seen = Histogram()
    for values in ([0.47, -0.27], [3.03], [0.01, -100.03]):
        seen.add(np.array(values, np.float32))
    assert (seen.limit, seen.low, seen.high) == (128.0, pytest.approx(-100.03), pytest.approx(3.03))
    assert seen.counts.sum() == 5
    assert len(seen.counts) == BINS
    width = 256 / BINS
    for value in (0.47, -0.27, 3.03, -100.03):
        assert seen.counts[math.floor((value + 128) / width)] >= 1
    alone = Histogram()
    alone.add(np.array([-100.03, 0.47, -0.27, 3.03, 0.01], np.float32))
    np.testing.assert_array_equal(alone.counts, seen.counts)


def test_nothing_but_zeros():
    seen = Histogram()
    seen.add(np.zeros(4, np.float32))
    assert {seen.range(method) for method in ("min_max", "percentile", "mse", "entropy")} == {(0.0, 0.0)}


def normal(count=20000, outlier=40.0):
    seen = Histogram()
    seen.add(random(count))
    seen.add(np.array([outlier], np.float32))
    return seen


def test_what_each_method_does_with_an_outlier():
    seen = normal()
    assert seen.range("min_max")[1] == 40
    for method in ("percentile", "entropy"):
        low, high = seen.range(method)
        assert -5 < low < -2.0, method
        assert 2.0 < high < 15, method
    assert seen.range("mse")[1] > 30, "one value far off costs more than the coarser steps of 20,000 others"
    assert normal(400000, 8.0).range("mse")[1] < 6.5, "with more of them it is cut"


def test_percentiles_in_slow_loops():
    counts, limit = np.array([1, 0, 5, 80, 10, 3, 1, 0]), 4.0
    assert percentiles(counts, limit, 100) == (-4.0, 3.0)
    assert percentiles(counts, limit, 98) == (-2.0, 2.0)
    values = np.repeat(np.arange(8) - 3.5, counts)
    low, high = percentiles(counts, limit, 98)
    assert (values < low).mean() <= 0.02
    assert (values > high).mean() <= 0.02


def test_the_least_squared_error_in_slow_loops():
    seen = normal(400, 9.0)
    best = least_error(seen)
    largest = max(-seen.low, seen.high)

    def error(threshold):
        low, high = max(seen.low, -threshold), min(seen.high, threshold)
        scale, zero = affine(low, high)
        total = 0.0
        for middle, count in zip(seen.middles.tolist(), seen.counts.tolist(), strict=True):
            if count:
                u = min(255, max(0, round(middle / scale) + zero))
                total += count * (middle - scale * (u - zero)) ** 2
        return total

    assert all(error(best) <= error(largest * step / 128) + 1e-9 for step in range(8, 129, 8))


def test_divergence_in_slow_loops():
    counts = np.array([4, 0, 2, 7, 9, 3, 1, 5])
    p = [0 + 4 + 0, 2, 7, 9, 3, 1 + 5]  # cut to three bins a side; what is cut goes to the ends
    p[0], kept = 4 + 0, [0, 2, 7, 9, 3, 1]
    q = []
    for start in (0, 2, 4):  # three parts of two bins
        part, filled = kept[start : start + 2], [value > 0 for value in p[start : start + 2]]
        q += [sum(part) / sum(filled) if there else 0 for there in filled]
    p, q = ([value / sum(mass) for value in mass] for mass in (p, q))
    expected = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a)
    assert divergence(counts, 3, steps=3) == pytest.approx(expected)
    assert divergence(np.ones(16, int), 8, steps=4) == pytest.approx(0, abs=1e-12)


def test_smoothing_of_three_channels():
    found = smoothing(np.array([16.0, 1.0, 0.0]), np.array([4.0, 1.0, 2.0]), 0.5)
    assert found.tolist() == [2.0, 1.0, 1.0]
    assert smoothing(np.array([16.0]), np.array([4.0]), 1.0).tolist() == [16.0]
    assert smoothing(np.array([16.0]), np.array([4.0]), 0.0).tolist() == [0.25]


# ---- the graph


@pytest.mark.parametrize(("low", "high"), [(-2.0, 2.0), (-0.2, 3.0), (0.0, 3.0)])
def test_a_linear_layer_in_slow_integer_arithmetic(low, high):
    x, weight = random(4, 24), random(24, 16, seed=1)
    found, facts, _ = static(x, weight, low, high)
    assert facts == {"linear": 1, "tables": 0, "float": []}
    scale, zero = affine(low, high)
    pairs = [weight[i] + weight[i + 1] for i in range(0, 24, 2)]
    w_scale = np.maximum(np.abs(weight).max(axis=0), np.abs(pairs).max(axis=0)) / 127
    q = np.rint(weight / w_scale).astype(int)
    least = 1 if low == -high else 0
    for row in range(4):
        u = [min(255, max(least, round(float(value) / scale) + zero)) for value in x[row]]
        for column in range(16):
            total = sum((u[i] - zero) * q[i, column] for i in range(24))
            assert found[row, column] == pytest.approx(scale * w_scale[column] * total, abs=1e-4)


def test_it_is_the_reference_quantizer(tmp_path):
    """QuantizeLinear of ONNX Runtime with the same range gives the same uint8."""
    x = random(6, 24)
    found, _, model = static(x, np.eye(24, 24, dtype=np.float32) * 64, -1.5, 2.5)
    scale, zero = affine(-1.5, 2.5)
    nodes = [
        (0, ("QuantizeLinear", ["x", "s", "z"], ["u"], {})),
        (1, ("DequantizeLinear", ["u", "s", "z"], ["y"], {})),
    ]
    weights = {"s": np.float32(scale), "z": np.uint8(zero)}
    weights = {name: np.asarray(value) for name, value in weights.items()}
    reference = graph(nodes, weights, {"x": (TensorProto.FLOAT, ["rows", 24])})
    np.testing.assert_allclose(found, 64 * run_graph(reference, x=x), rtol=1e-6)
    onnx.checker.check_model(model)


def test_what_has_no_range_stays_in_float():
    weight = random(24, 16)
    found, facts = quantized(linear(weight), activations="static", ranges={})
    assert facts == {"linear": 0, "tables": 0, "float": ["part.0"]}
    np.testing.assert_array_equal(weights_of(found)["w"], weight)


def test_smoothing_helps_a_channel_that_is_louder():
    x, weight = random(64, 32), random(32, 16, seed=1)
    x[:, 3] *= 60
    exact = x @ weight
    by = smoothing(np.abs(x).max(axis=0), np.abs(weight).max(axis=1), 0.5)
    plain, _, _ = static(x, weight, float(x.min()), float(x.max()))
    smooth = x / by
    better, _, _ = static(x, weight, float(smooth.min()), float(smooth.max()), smooth={"part.0": tuple(by.tolist())})
    assert np.abs(better - exact).mean() < 0.5 * np.abs(plain - exact).mean()


def test_smoothing_moves_into_a_norm_that_nothing_else_reads():
    gain, bias, weight = 1 + 0.1 * random(32), random(32, seed=3), random(32, 16, seed=1)
    by = np.exp(0.3 * random(32, seed=4)).astype(np.float32)
    norm = (0, ("LayerNormalization", ["x", "g", "c"], ["n"], {"axis": -1}))
    product = (1, ("MatMul", ["n", "w"], ["y"], {}))
    model = graph([norm, product], {"g": gain, "c": bias, "w": weight}, {"x": (TensorProto.FLOAT, ["rows", 32])})
    ranges, smooth = {"part.1": (-10.0, 10.0)}, {"part.1": tuple(by.tolist())}
    found, _ = quantized(model, activations="static", ranges=ranges, smooth=smooth)
    plain, _ = quantized(model, activations="static", ranges=ranges)
    kinds = [[node.op_type for node in made.graph.node] for made in (found, plain)]
    assert kinds[0] == kinds[1], "no product is added"
    x = random(8, 32, seed=5)
    np.testing.assert_allclose(run_graph(found, x=x), run_graph(model, x=x), rtol=0, atol=1.0)


def test_smoothing_moves_into_no_norm_that_an_excluded_product_reads():
    weights = {"g": 1 + 0.1 * random(32), "w": random(32, 16, seed=1), "v": random(32, 16, seed=2)}
    norm = (0, ("LayerNormalization", ["x", "g"], ["n"], {"axis": -1}))
    products = [(1, ("MatMul", ["n", "w"], ["a"], {})), (2, ("MatMul", ["n", "v"], ["b"], {}))]
    nodes = [norm, *products, (3, ("Add", ["a", "b"], ["y"], {}))]
    model = graph(nodes, weights, {"x": (TensorProto.FLOAT, ["rows", 32])})
    by, each = tuple(np.linspace(0.5, 2, 32).tolist()), ("part.1", "part.2")
    given = {"ranges": dict.fromkeys(each, (-6.0, 6.0)), "smooth": dict.fromkeys(each, by), "exclude": ("part.2",)}
    found, facts = quantized(model, activations="static", **given)
    assert (facts["linear"], facts["float"]) == (1, ["part.2"])
    x = random(8, 32, seed=5)
    np.testing.assert_allclose(run_graph(found, x=x), run_graph(model, x=x), rtol=0, atol=1.0)


def test_layers_that_share_a_matrix_share_its_smoothing(monkeypatch):
    """ALBERT's matrix would be stored once a layer otherwise."""
    weight, x = random(32, 32, seed=1), random(8, 32)
    x[:, 3] *= 60
    second = x @ weight
    nodes = [(0, ("MatMul", ["x", "w"], ["a"], {})), (1, ("MatMul", ["a", "w"], ["y"], {}))]
    model = graph(nodes, {"w": weight}, {"x": (TensorProto.FLOAT, ["rows", 32])})
    tidied, _ = quantized(model, activations="static")
    names = [node.name for node in tidied.graph.node]
    monkeypatch.setattr(Calibration, "_inputs", lambda *_: zip(names, (x, second), strict=True))
    calibration = Calibration(tidied, None, ())
    by = calibration.smoothings(calibration.linear(()), 0.5)
    largest = np.maximum(np.abs(x).max(axis=0), np.abs(second).max(axis=0))
    for name in names:
        np.testing.assert_array_equal(by[name], smoothing(largest, np.abs(weight).max(axis=1), 0.5))
    ranges = {name: (-float(largest.max()), float(largest.max())) for name in names}
    smooth = {name: tuple(values.tolist()) for name, values in by.items()}
    made, _ = quantized(model, activations="static", ranges=ranges, smooth=smooth)
    assert [weight.data_type for weight in made.graph.initializer].count(TensorProto.INT8) == 1


# ---- biases that make up for the rounding


@pytest.mark.parametrize("op", ["MatMul", "Gemm", "MatMul without a bias"])
@pytest.mark.parametrize("smooth", [False, True])
def test_the_mean_output_is_exact(op, smooth, monkeypatch):
    """Of inputs that are all above 0, rounded coarsely: without the correction the means are off."""
    x, weight, bias = np.abs(random(64, 32)) + 0.4, random(32, 16, seed=1), random(16, seed=2)
    model = linear(weight, bias, op.split()[0])
    if op.endswith("bias"):
        del model.graph.node[1:], model.graph.initializer[1:]
        model.graph.node[0].output[0], bias = "y", 0.0
    tidied, _ = quantized(model, activations="static")
    node = tidied.graph.node[0].name
    by = {node: tuple(np.linspace(0.5, 2, 32).tolist())} if smooth else {}
    given = {"activations": "static", "ranges": {node: (0.0, 30.0)}, "smooth": by}
    calibration = Calibration(tidied, None, ())
    monkeypatch.setattr(Calibration, "_inputs", lambda self, wanted: iter([(node, x[:20]), (node, x[20:])]))
    found = calibration.corrections(calibration.linear(()), Int8(**given))
    plain, _ = quantized(model, **given)
    corrected, _ = quantized(model, **given, bias={name: tuple(v.tolist()) for name, v in found.items()})
    exact = (x @ weight + bias).mean(axis=0)
    np.testing.assert_allclose(run_graph(corrected, x=x).mean(axis=0), exact, atol=1e-4)
    assert np.abs(run_graph(plain, x=x).mean(axis=0) - exact).max() > 1e-3
    added = len(corrected.graph.node) - len(plain.graph.node)
    assert added == (op == "MatMul without a bias"), "it moves into the bias that is there"


def test_layers_that_share_a_bias_are_corrected_each_by_itself():
    weight, bias = random(32, 32, seed=1), random(32, seed=2)
    nodes = [
        (0, ("MatMul", ["x", "w"], ["a"], {})),
        (1, ("Add", ["a", "b"], ["c"], {})),
        (2, ("MatMul", ["c", "w"], ["d"], {})),
        (3, ("Add", ["d", "b"], ["y"], {})),
    ]
    model = graph(nodes, {"w": weight, "b": bias}, {"x": (TensorProto.FLOAT, ["rows", 32])})
    given = {"activations": "static", "ranges": {"part.0": (-4.0, 4.0), "part.2": (-40.0, 40.0)}}
    x, more = random(4, 32), random(32, seed=3)
    plain, _ = quantized(model, **given)
    corrected, _ = quantized(model, **given, bias={"part.2": tuple(more.tolist())})
    np.testing.assert_allclose(run_graph(corrected, x=x), run_graph(plain, x=x) + more, rtol=1e-5, atol=1e-4)


# ---- the technique


def step(model, task, **fields):
    return run(
        Recipe(steps=(StaticQuantization(**fields),)), model, Inputs(calibration=task.train), dry_run_first=False
    )


@pytest.mark.parametrize("family", ["bert", "albert", "xlnet", "modernbert"])
def test_the_export_has_the_recorded_ranges_and_exact_sums(family, tmp_path):
    task = tiny_task()
    model = tiny_taskmodel(family, task.spec)
    result = step(model, task, keep_float="none")
    assert result.digest == model.digest
    record = result.lineage[-1]
    scheme = Int8.model_validate(record.export_scheme)
    assert (scheme.activations, scheme.reduce_range) == ("static", "pairs")
    report = export_onnx(result, tmp_path / "int8", examples=task.validation, agreement=0.8)
    assert report.quantized["linear"] == len(scheme.ranges) == record.facts["linear"]
    assert report.quantized["float"] == [{"xlnet": "logits_proj"}.get(family, "classifier")]
    assert report.gate.mean_abs_difference < 0.05 * report.gate.scale
    assert report.gate.batch_difference < 1e-5, "static ranges keep rows apart"
    inputs = model.encoder.collate(model.encoder.encode(task.validation[:4]))
    assert check_exact(tmp_path / "int8" / "model.onnx", inputs) == report.quantized["linear"]


@pytest.mark.parametrize("family", ["bert", "modernbert", "albert"])
def test_smoothing_leaves_the_answers_as_they_are(family, tmp_path):
    """In ModernBERT it moves into the norms, in the others it stays a product."""
    task = tiny_task()
    result = step(tiny_taskmodel(family, task.spec), task, method="mse", smooth=0.5, keep_float="none")
    report = export_onnx(result, tmp_path / "int8", examples=task.validation, agreement=0.8)
    assert report.gate.mean_abs_difference < 0.05 * report.gate.scale
    names = [node.name for node in onnx.load(str(tmp_path / "int8" / "model.onnx")).graph.initializer]
    assert any("_smooth_" in name and name.endswith("_by") for name in names)
    assert any("norm" in name and name.endswith("_smooth") for name in names) == (family == "modernbert")


def test_corrected_biases_are_recorded_and_exported(tmp_path):
    task = tiny_task()
    result = step(tiny_taskmodel("bert", task.spec), task, correct_bias=True, keep_float="none")
    scheme = Int8.model_validate(result.lineage[-1].export_scheme)
    assert scheme.bias.keys() == scheme.ranges.keys()
    dense = "bert.encoder.layer.1.intermediate.dense/MatMul"
    assert len(scheme.bias[dense]) == result.model.config.intermediate_size
    export_onnx(result, tmp_path / "int8", examples=task.validation, agreement=0.8)
    weights = {w.name: w for w in onnx.load(str(tmp_path / "int8" / "model.onnx")).graph.initializer}
    own = result.model.bert.encoder.layer[1].intermediate.dense.bias.detach().numpy() + np.array(scheme.bias[dense])
    assert any(np.allclose(onnx.numpy_helper.to_array(w), own) for w in weights.values() if w.dims == [len(own)])


def test_a_layer_in_float_keeps_its_bias():
    task = tiny_task()
    scheme = StaticQuantization(correct_bias=True).scheme_from(
        Calibration.of(tiny_taskmodel("bert", task.spec), task.train)
    )
    every = list(scheme.ranges)
    assert only(scheme, every[1:], every).bias.keys() == set(every[1:])


def test_ranges_are_those_of_the_inputs():
    task = tiny_task()
    model = tiny_taskmodel("bert", task.spec)
    result = step(model, task, method="min_max", keep_float="none")
    ranges = result.lineage[-1].export_scheme["ranges"]
    part = model.model.bert.encoder.layer[1].intermediate.dense
    seen = []
    handle = part.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach().numpy()))
    for feature in model.encoder.encode(task.train):
        model.forward(model.encoder.collate([feature]))
    handle.remove()
    low, high = ranges["bert.encoder.layer.1.intermediate.dense/MatMul"]
    assert low == pytest.approx(min(x.min() for x in seen), abs=1e-5)
    assert high == pytest.approx(max(x.max() for x in seen), abs=1e-5)


def test_layers_that_lose_most_stay_in_float(monkeypatch, caplog):
    """One layer alone is to blame: it is found, listed and logged, and the rest is quantized."""
    task = tiny_task()
    blamed = "bert.encoder.layer.1.output.dense/MatMul"

    def loss(self, scheme, expected):
        return (0.9, 3.0) if blamed in scheme.ranges else (1.0, 0.1)

    monkeypatch.setattr(Calibration, "_loss", loss)
    with caplog.at_level("INFO", logger="compress.quantize"):
        record = step(tiny_taskmodel("bert", task.spec), task, budget=0.05).lineage[-1]
    assert record.facts["kept_in_float"] == {blamed: 3.0}
    assert record.facts["agreement"] == 1.0
    assert blamed not in record.export_scheme["ranges"]
    assert record.facts["linear"] == 18
    assert "bert.encoder.layer.1.output.dense stays in float" in caplog.text


def test_no_budget_keeps_what_it_must(tmp_path):
    task = tiny_task()
    model = tiny_taskmodel("bert", task.spec)
    result = step(model, task, budget=0.0)
    facts = result.lineage[-1].facts
    assert facts["agreement"] == 1.0
    export_onnx(result, tmp_path / "int8", agreement=0.5)
    assert compare(Runtime(tmp_path / "int8"), model, task.train, tolerance=None, agreement=0.0).agreement == 1.0


def test_what_cannot_be_is_refused():
    task = tiny_task()
    model = tiny_taskmodel("bert", task.spec)
    with pytest.raises(UserError, match="needs a task whose data gives the ranges"):
        run(Recipe(steps=(StaticQuantization(),)), model, Inputs())
    (problem,) = StaticQuantization(exclude=("clasifier",)).check(model, Inputs())
    assert "did you mean 'classifier'" in problem
    steps = (StaticQuantization(), StaticQuantization())
    with pytest.raises(UserError, match=r"comes after step 1, quantize\.static, which must be the last step"):
        run(Recipe(steps=steps), model, Inputs(calibration=task.train))
