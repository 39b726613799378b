"""Quantized numbers against hand-computed ones, slow integer arithmetic, and ONNX Runtime's own quantizer."""

import logging
from collections import Counter
from math import erf

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from compress.engine.steps import run as run_steps
from compress.export.check.arithmetic import product
from compress.modules.int8_scheme import Int8, is_excluded, quantize_rows, quantize_weight
from compress.onnx_graph.float_graph import float_graph
from compress.onnx_graph.int8_graph import linear_nodes, quantize_graph
from compress.onnx_graph.rewrites import einsum_as_product, module_of, tidy
from compress.quantize.calibration import Calibration
from compress.quantize.dynamic import DynamicQuantization, mixed
from compress.recipe import Recipe
from compress.registry import get
from compress.technique import Inputs
from eval.cost.machine import cpu_features
from eval.errors import UserError
from tests.avx2 import saturating_product
from tests.tiny import FAMILIES, at_first, tiny_task, tiny_taskmodel


def graph(nodes, weights, inputs, rank=2, opset=17):
    values = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()]
    made = helper.make_graph(
        [helper.make_node(op, ins, outs, name=f"/model/part.{i}/{op}", **more) for i, (op, ins, outs, more) in nodes],
        "g",
        values,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * rank)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def linear(weight, bias=None, op="MatMul", opset=17):
    """y = x W + b, as a MatMul with an Add or as a Gemm with the weight transposed."""
    if op == "Gemm":
        nodes = [("Gemm", ["x", "w", "b"], ["y"], {"transB": 1})]
        weights = {"w": np.ascontiguousarray(weight.T), "b": bias}
    else:
        nodes = [("MatMul", ["x", "w"], ["xw"], {}), ("Add", ["xw", "b"], ["y"], {})]
        weights = {"w": weight, "b": np.zeros(weight.shape[1], np.float32) if bias is None else bias}
    return graph(list(enumerate(nodes)), weights, {"x": (TensorProto.FLOAT, ["rows", weight.shape[0]])}, opset=opset)


def run(model, **inputs):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)[0]


def quantized(model, **scheme):
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    tidy(copy)
    facts = quantize_graph(copy, Int8(**scheme))
    onnx.checker.check_model(copy)
    return copy, facts


def weights_of(model):
    return {weight.name: numpy_helper.to_array(weight) for weight in model.graph.initializer}


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def after_gelu(weight, then=(), op="Gelu"):
    """y = f(gelu(x)) W, with GELU as one operator or as exporters write it, and f the operators in ``then``."""
    whole = [("Gelu", ["x"], ["g"], {})]
    parts = [
        ("Div", ["x", "root"], ["a"], {}),
        ("Erf", ["a"], ["b"], {}),
        ("Add", ["b", "one"], ["c"], {}),
        ("Mul", ["x", "c"], ["d"], {}),
        ("Mul", ["d", "half"], ["g"], {}),
    ]
    last = then[-1][2][0] if then else "g"
    nodes = [*(whole if op == "Gelu" else parts), *then, ("MatMul", [last, "w"], ["y"], {})]
    numbers = {"root": np.float32(np.sqrt(2)), "one": np.float32(1), "half": np.float32(0.5)}
    weights = {"w": weight} | ({} if op == "Gelu" else {name: np.array(number) for name, number in numbers.items()})
    shape = (TensorProto.FLOAT, ["rows", weight.shape[0]])
    return graph(list(enumerate(nodes)), weights, {"x": shape, "other": shape}, opset=20 if op == "Gelu" else 17)


# ---- numbers computed by hand


def test_asymmetric_activation_of_three_numbers():
    nodes = [(0, ("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], {})), (1, ("Cast", ["q"], ["y"], {"to": 1}))]
    model = graph(nodes, {}, {"x": (TensorProto.FLOAT, [3])}, rank=1)
    model.graph.output.extend(
        [helper.make_tensor_value_info("s", TensorProto.FLOAT, []), helper.make_tensor_value_info("z", 2, [])]
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    q, scale, zero = session.run(None, {"x": np.array([-1, 0.5, 3], np.float32)})
    assert q.tolist() == [0, 96, 255]
    assert scale == pytest.approx(4 / 255)
    assert zero == 64


def test_symmetric_weight_of_three_numbers():
    weight = np.array([[-1], [0.5], [0.25]], np.float32)
    q, scale = quantize_weight(weight, reduce_range=False)
    assert q[:, 0].tolist() == [-127, 64, 32]
    assert scale.tolist() == [pytest.approx(1 / 127)]
    q, scale = quantize_weight(weight, reduce_range=True)
    assert q[:, 0].tolist() == [-64, 32, 16]
    assert scale.tolist() == [1 / 64]


def test_one_scale_an_output_or_one_for_all():
    weight = np.array([[1, 100], [-2, 50]], np.float32)
    assert quantize_weight(weight, per_channel=True, reduce_range=True)[1].tolist() == [2 / 64, 100 / 64]
    q, scale = quantize_weight(weight, per_channel=False, reduce_range=True)
    assert scale.shape == ()
    assert (float(scale), q.tolist()) == (100 / 64, [[1, 64], [-1, 32]])


def test_a_pair_of_neighbours_is_held_to_128():
    """Three columns: a large pair, a pair that cancels, and a large one whose neighbour is in another pair."""
    weight = np.array([[1.0, 1.0, 0.5], [1.0, -1.0, 1.0], [0.5, 0.0, 1.0]], np.float32)
    q, scale = quantize_weight(weight, reduce_range="pairs")
    np.testing.assert_allclose(scale, [2 / 127, 1 / 127, 1.5 / 127], rtol=1e-6)
    assert q.T.tolist() == [[64, 64, 32], [127, -127, 0], [42, 85, 85]]
    _, together = quantize_weight(weight, per_channel=False, reduce_range="pairs")
    assert float(together) == pytest.approx(2 / 127)


@pytest.mark.parametrize("rows", [1, 2, 7, 64])
def test_no_pair_saturates_and_most_steps_are_smaller_than_with_seven_bits(rows):
    weight = random(rows, 200)
    q, scale = quantize_weight(weight)
    worst = np.full((1, rows), 255, np.uint8)
    for signs in (q, np.maximum(q, 0), np.minimum(q, 0)):
        np.testing.assert_array_equal(product(worst, signs, "avx2"), product(worst, signs, "vnni"))
    finer = quantize_weight(weight, reduce_range=True)[1] / scale
    assert finer.min() > 0.99
    assert np.median(finer) > 1.2
    assert np.abs(q * scale - weight).max() <= scale.max() / 2 * 1.001


def test_zeros_stay_zeros():
    q, scale = quantize_weight(np.zeros((3, 2), np.float32))
    assert not q.any()
    assert scale.tolist() == [1, 1]


def test_rows_of_a_table_have_their_own_scale():
    table = np.array([[1.0, -0.5], [0.01, 0.004], [0, 0]], np.float32)
    q, scale = quantize_rows(table)
    assert q.tolist() == [[127, -64], [127, 51], [0, 0]]
    assert np.abs(q * scale - table).max(axis=1).tolist() <= (np.abs(table).max(axis=1) / 254).tolist()


# ---- ONNX Runtime's own quantizer writes the same


def reference(model, tmp_path, **options):
    from onnxruntime.quantization import quantize_dynamic

    logging.disable(logging.WARNING)  # it advises a preparation that changes nothing here
    try:
        quantize_dynamic(model, tmp_path / "q.onnx", op_types_to_quantize=["MatMul"], **options)
    finally:
        logging.disable(logging.NOTSET)
    return onnx.load(tmp_path / "q.onnx")


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("reduce_range", [True, False])
@pytest.mark.parametrize("op", ["MatMul", "Gemm"])
def test_with_tensor_ranges_it_is_the_reference_bit_for_bit(tmp_path, per_channel, reduce_range, op):
    model = linear(random(48, 32), random(32, seed=1), op)
    ours, _ = quantized(model, activations="tensor", per_channel=per_channel, reduce_range=reduce_range)
    theirs = reference(model, tmp_path, per_channel=per_channel, reduce_range=reduce_range)
    weight = next(array for name, array in weights_of(theirs).items() if name.endswith("_quantized"))
    scale = next(array for name, array in weights_of(theirs).items() if name.endswith("_scale"))
    np.testing.assert_array_equal(weights_of(ours)["w_int8"], weight)
    np.testing.assert_array_equal(weights_of(ours)["w_int8_scale"].reshape(scale.shape), scale)
    x = random(5, 48, seed=2)
    np.testing.assert_array_equal(run(ours, x=x), run(theirs, x=x))


# ---- the formula with a range a token, in slow integer arithmetic


def by_hand(x, weight, bias):
    pairs = [weight[i] + weight[i + 1] for i in range(0, len(weight), 2)]
    scale = np.maximum(np.abs(weight).max(axis=0), np.abs(pairs).max(axis=0)) / np.float32(127)
    q = np.rint(weight / scale).astype(int)
    out = np.zeros((len(x), weight.shape[1]))
    for row in range(len(x)):
        s = np.abs(x[row]).max() * np.float32(1 / 127)
        u = np.rint(x[row] / s).astype(int) + 128
        for column in range(weight.shape[1]):
            out[row, column] = s * scale[column] * sum((u[i] - 128) * q[i, column] for i in range(len(u)))
    return out + bias


@pytest.mark.parametrize("op", ["MatMul", "Gemm"])
@pytest.mark.parametrize("opset", [17, 18])
def test_a_linear_layer_follows_the_formula(op, opset):
    x, weight, bias = random(4, 24), random(24, 16, seed=1), random(16, seed=2)
    model, facts = quantized(linear(weight, bias, op, opset))
    assert facts == {"linear": 1, "tables": 0, "float": []}
    np.testing.assert_allclose(run(model, x=x), by_hand(x, weight, bias), rtol=0, atol=1e-5)
    np.testing.assert_allclose(run(model, x=x), x @ weight + bias, rtol=0, atol=0.25)


def test_a_row_of_zeros_gives_the_bias():
    bias = random(16, seed=2)
    model, _ = quantized(linear(random(24, 16), bias))
    np.testing.assert_array_equal(run(model, x=np.zeros((2, 24), np.float32)), [bias, bias])


def test_an_embedding_is_looked_up_row_by_row():
    table = random(40, 16)
    nodes = [(0, ("Gather", ["table", "ids"], ["y"], {}))]
    model = graph(nodes, {"table": table}, {"ids": (TensorProto.INT64, ["n"])})
    ids = np.array([3, 3, 39, 0])
    found, facts = quantized(model)
    assert facts["tables"] == 1
    q, scale = quantize_rows(table)
    np.testing.assert_array_equal(run(found, ids=ids), (q * scale)[ids])
    assert weights_of(found)["table_rows"].dtype == np.int8
    untouched, facts = quantized(model, embeddings=False)
    assert facts["tables"] == 0
    np.testing.assert_array_equal(run(untouched, ids=ids), table[ids])


@pytest.mark.parametrize("equation", ["ibh,hnd->ibnd", "ibnd,hnd->ibh"])
def test_an_einsum_with_a_weight_is_a_product(equation):
    weight = random(16, 4, 6)
    x = random(3, 2, *((16,) if equation.startswith("ibh") else (4, 6)), seed=1)
    matrix, axes, shape = einsum_as_product(equation, weight)
    expected = np.einsum(equation, x, weight)
    flat = x.reshape(*x.shape[: x.ndim - axes], -1)
    np.testing.assert_allclose((flat @ matrix).reshape(*x.shape[:2], *shape), expected, atol=1e-5)
    nodes = [(0, ("Einsum", ["x", "w"], ["y"], {"equation": equation}))]
    model = graph(nodes, {"w": weight}, {"x": (TensorProto.FLOAT, ["i", "b", *x.shape[2:]])}, rank=2 + len(shape))
    found, facts = quantized(model)
    assert facts["linear"] == 1
    assert weights_of(found)["w_int8"].nbytes == weight.size
    np.testing.assert_allclose(run(found, x=x), expected, rtol=0, atol=0.25)


@pytest.mark.parametrize("equation", ["ibnd,jbnd->bnij", "ibnd,snd->ibns", "ibh,hnd->bind"])
def test_other_einsums_are_left_alone(equation):
    shapes = {"ibnd,jbnd->bnij": (5, 2, 4, 6), "ibnd,snd->ibns": (2, 4, 6), "ibh,hnd->bind": (16, 4, 6)}
    assert einsum_as_product(equation, random(*shapes[equation])) is None


# ---- what the settings promise


def test_ranges_by_token_keep_rows_apart_and_ranges_by_tensor_do_not():
    model = linear(random(64, 32))
    row, loud = random(1, 64, seed=1), 100 * random(1, 64, seed=2)
    both = np.concatenate([row, loud])
    token, _ = quantized(model, activations="token")
    np.testing.assert_array_equal(run(token, x=both)[0], run(token, x=row)[0])
    tensor, _ = quantized(model, activations="tensor")
    assert np.abs(run(tensor, x=both)[0] - run(tensor, x=row)[0]).max() > 0.5


def test_modules_named_by_token_have_ranges_by_token_and_the_others_by_tensor():
    """Both products read the same x, so it is quantized in both ways."""
    weights = {"feed": random(64, 32), "keys": random(64, 32, seed=3)}
    nodes = [helper.make_node("MatMul", ["x", name], [f"y_{name}"], f"{name}/MatMul") for name in weights]
    taken = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 64])]
    given = [helper.make_tensor_value_info(f"y_{name}", TensorProto.FLOAT, None) for name in weights]
    constants = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    two = helper.make_graph(nodes, "g", taken, given, constants)
    model = helper.make_model(two, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = np.concatenate([random(1, 64, seed=1), 100 * random(1, 64, seed=2)])

    def answers(**scheme):
        copy = onnx.ModelProto.FromString(model.SerializeToString())
        assert quantize_graph(copy, Int8(**scheme))["linear"] == 2
        session = onnxruntime.InferenceSession(copy.SerializeToString(), providers=["CPUExecutionProvider"])
        return session.run(None, {"x": x})

    token, tensor = answers(activations="token"), answers(activations="tensor")
    mixed = answers(activations="tensor", by_token=("feed",))
    np.testing.assert_array_equal(mixed[0], token[0])
    np.testing.assert_array_equal(mixed[1], tensor[1])
    assert np.abs(token[1] - tensor[1]).max() > 0.1


@pytest.mark.parametrize("family", at_first(FAMILIES, "bert"))
def test_mixed_ranges_name_the_feed_forward_products_of_every_family(family):
    model = tiny_taskmodel(family)
    scheme = mixed(model)
    found = Counter()
    for node, _ in linear_nodes(float_graph(model).graph):
        found.update(name for name in scheme.by_token if is_excluded(module_of(node), [name]))
    assert all(found[name] for name in scheme.by_token), "each of them is a product of the graph"
    assert bool(scheme.by_token) == (scheme.activations == "tensor")
    assert not any("attention" in name.split(".")[-3:-1] for name in scheme.by_token)


@pytest.mark.parametrize("reduce_range", [True, "pairs"])
@pytest.mark.parametrize("activations", ["token", "tensor"])
def test_reduced_weights_never_saturate(activations, reduce_range):
    """All activations at 255 and all weights at their largest: the worst sum there is, and it is exact."""
    model, _ = quantized(linear(np.ones((256, 16), np.float32)), reduce_range=reduce_range, activations=activations)
    weights = {True: 1.0, "pairs": 64 * 2 / 127}  # 63.5 of 127 steps of 2 / 127, rounded: a pair has 128
    np.testing.assert_allclose(run(model, x=np.ones((3, 256), np.float32)), 256 * weights[reduce_range], rtol=1e-6)


@pytest.mark.parametrize("op", ["Gelu", "Erf"])
def test_what_gelu_gives_has_all_8_bits_above_its_least_value(op):
    weight, x = random(32, 16), 3 * random(5, 32, seed=1)
    model, facts = quantized(after_gelu(weight, op=op))
    assert facts["linear"] == 1
    gelu = np.array([[v * (1 + erf(v / 2**0.5)) / 2 for v in row] for row in x.tolist()])
    q, scale = quantize_weight(weight)
    step = (gelu.max(axis=1, keepdims=True) + 0.17) / 255
    u = np.rint((gelu + 0.17) / step)
    assert u.min() >= 0
    expected = step * scale * (u @ q) - 0.17 * scale * q.sum(axis=0)
    found = run(model, x=x, other=x)
    exact = gelu @ (q * scale)
    symmetric = np.abs(gelu).max(axis=1, keepdims=True) / 127
    usual = symmetric * scale * (np.rint(gelu / symmetric) @ q)
    assert np.abs(found - exact).mean() < 0.65 * np.abs(usual - exact).mean(), "half of the step"
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "then",
    [
        [("Mul", ["g", "other"], ["z"], {})],
        [("Mul", ["g", "x"], ["z"], {})],
        [("Add", ["g", "x"], ["z"], {})],
        [("Mul", ["g", "half"], ["z"], {})],
    ],
)
def test_what_is_made_of_gelu_may_be_less_and_is_not_raised(then):
    weight, x = random(32, 16), 3 * random(5, 32, seed=1)
    model, _ = quantized(after_gelu(weight, then, op="Erf"))
    assert "raised_by" not in weights_of(model)
    exact = run(after_gelu(weight, then, op="Erf"), x=x, other=-x)
    assert np.abs(run(model, x=x, other=-x) - exact).mean() < 0.05 * np.abs(exact).mean()


def test_a_computed_bias_takes_away_what_gelu_was_raised_by():
    weight, x, bias = random(32, 16), random(5, 32, seed=1), random(16, seed=2)
    nodes = [
        ("Gelu", ["x"], ["g"], {}),
        ("Neg", ["b"], ["computed"], {}),
        ("Gemm", ["g", "w", "computed"], ["y"], {}),
    ]
    shape = (TensorProto.FLOAT, ["rows", 32])
    model = graph(list(enumerate(nodes)), {"w": weight, "b": bias}, {"x": shape}, opset=20)
    np.testing.assert_allclose(run(quantized(model)[0], x=x), run(model, x=x), rtol=0, atol=0.1)


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 10_000), inner=st.integers(1, 9), heavy=st.booleans())
def test_pairs_never_saturate_and_are_finer_than_seven_bits(seed, inner, heavy):
    """The largest activations of either sign of weights, against exact integers; scales lie between 8 and 7 bits."""
    chance = np.random.default_rng(seed)
    matrix = (chance.standard_normal((inner, 5)) ** (3 if heavy else 1)).astype(np.float32)
    found, scale = quantize_weight(matrix, reduce_range="pairs")
    of = {bits: quantize_weight(matrix, reduce_range=bits == 7)[1] for bits in (7, 8)}
    assert np.all(of[8] <= scale * 1.0001)
    assert np.all(scale <= of[7] * 1.01)
    for u in (255 * (found > 0), 255 * (found < 0), np.full_like(found, 255, dtype=np.int64)):
        for column in range(5):
            rows, weights = u[:, column].astype(np.uint8)[None], found[:, [column]]
            assert np.array_equal(saturating_product(rows, weights), rows.astype(int) @ weights.astype(int))
    assert np.all(np.abs(matrix - found * scale) <= 0.5001 * scale)


def test_eight_bit_weights_saturate_where_there_is_no_vnni():
    if {"avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm"} & set(cpu_features()) or "avx2" not in cpu_features():
        pytest.skip("this processor multiplies 8-bit numbers exactly; saturation needs AVX2 without VNNI")
    model, _ = quantized(linear(np.ones((256, 16), np.float32)), reduce_range=False, activations="tensor")
    assert run(model, x=np.ones((3, 256), np.float32)).max() < 0.75 * 256


def test_excluded_and_small_matrices_stay_in_float():
    weight = random(32, 32)
    found, facts = quantized(linear(weight), exclude=("part.*",))
    assert facts == {"linear": 0, "tables": 0, "float": ["part.0"]}
    np.testing.assert_array_equal(weights_of(found)["w"], weight)
    _, facts = quantized(linear(random(32, 3)))
    assert facts == {"linear": 0, "tables": 0, "float": ["part.0"]}


# ---- the technique


def test_the_technique_records_its_scheme_and_touches_no_weight():
    model = tiny_taskmodel("bert")
    before = model.digest
    technique = DynamicQuantization(reduce_range=False, exclude=("classifier",))
    outcome = technique.apply(model, Inputs(), None)
    assert outcome.export_scheme == {
        "per_channel": True,
        "reduce_range": False,
        "embeddings": True,
        "activations": "token",
        "exclude": ["classifier"],
    }
    assert outcome.model.model is model.model
    assert tiny_taskmodel("bert").digest == before
    assert technique.freezes
    assert technique.reduces == {"export_bytes"}
    mixed_scheme = DynamicQuantization(activations="mixed", exclude=("classifier",)).apply(model, Inputs(), None)
    assert Int8.model_validate(mixed_scheme.export_scheme) == mixed(model, exclude=("classifier",))


def test_technique_and_scheme_have_the_same_settings():
    assert DynamicQuantization().scheme(tiny_taskmodel("bert")) == Int8()
    assert set(DynamicQuantization.model_fields) - {"keep_float", "budget"} < set(Int8.model_fields)


def test_layers_that_lose_most_stay_in_float(monkeypatch, caplog, tmp_path):
    """One layer alone is to blame: it is found, listed and logged, and the export leaves it in float."""
    from compress.engine.steps import run as run_steps
    from compress.export import export_onnx

    task = tiny_task()
    blamed = "bert.encoder.layer.1.output.dense"

    def loss(self, scheme, expected):
        return (1.0, 0.1) if is_excluded(blamed, scheme.exclude) else (0.9, 3.0)

    monkeypatch.setattr(Calibration, "_loss", loss)
    technique = DynamicQuantization(keep_float="auto", budget=0.05, exclude=("classifier",))
    assert technique.needed() == {"calibration"}
    recipe, inputs = Recipe(steps=(technique,)), Inputs(calibration=task.train[:8])
    with caplog.at_level("INFO", logger="compress.quantize"):
        result = run_steps(recipe, tiny_taskmodel("bert", task.spec), inputs)
    assert result.lineage[-1].facts == {"kept_in_float": {blamed: 3.0}, "agreement": 1.0}
    assert f"{blamed} stays in float" in caplog.text
    report = export_onnx(result, tmp_path / "onnx", examples=task.validation, agreement=0.0)
    assert {blamed, "classifier"} <= set(report.quantized["float"])


def test_a_search_needs_examples():
    (problem,) = DynamicQuantization(keep_float="auto").check(tiny_taskmodel("bert"), Inputs(calibration=()))
    assert problem.endswith("there are no calibration examples; give the task training data")


def test_a_pattern_that_names_nothing_is_refused():
    model = tiny_taskmodel("bert")
    assert DynamicQuantization(exclude=("*.query", "classifier")).check(model, Inputs()) == []
    (problem,) = DynamicQuantization(exclude=("clasifier",)).check(model, Inputs())
    assert problem.startswith("quantize.dynamic: exclude: no module is called 'clasifier'")
    assert "did you mean 'classifier'" in problem


@pytest.mark.parametrize("name", ["quantize.dynamic", "quantize.static"])
def test_what_is_packed_already_is_refused(name):
    task = tiny_task()
    packed = run_steps(Recipe(steps=(get("quantize.weights")(),)), tiny_taskmodel("bert", task.spec), Inputs())
    with pytest.raises(UserError, match=f"{name}: its layers are packed by an earlier step"):
        run_steps(Recipe(steps=(get(name)(),)), packed, Inputs(train=task.train, calibration=task.train))
