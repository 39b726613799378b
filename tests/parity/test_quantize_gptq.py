"""GPTQ against the elimination that it stands for, step by step; and the codes on their way into a graph."""

import numpy as np
import onnx
import pytest

from compress.export.default_int8 import default_forms
from compress.modules.int8_scheme import Int8, quantize_weight
from compress.onnx_graph.build import onnx_graph
from compress.quantize import calibration
from compress.quantize.calibration import Calibration, only
from compress.quantize.gptq import DAMPING, gptq, output_errors
from tests.tiny import tiny_task, tiny_taskmodel


def correlated(inputs, outputs, seed=0):
    """Return a matrix and the second moments of inputs that have much in common."""
    chance = np.random.default_rng(seed)
    x = chance.normal(size=(400, 5)) @ chance.normal(size=(5, inputs)) + 0.3 * chance.normal(size=(400, inputs))
    return chance.normal(size=(inputs, outputs)).astype(np.float32), (x.T @ x / len(x)).astype(np.float32)


def eliminated(matrix, scale, moments):
    """Round weight after weight, and take each out of the inverse of what is left, as Frantar et al. derive it."""
    damped = moments.astype(np.float64) + DAMPING * np.diag(moments).mean() * np.eye(len(moments))
    codes = np.zeros(matrix.shape)
    for output in range(matrix.shape[1]):
        left, open_rows = (matrix[:, output] / scale[output]).astype(np.float64), list(np.argsort(-np.diag(moments)))
        while open_rows:
            row = open_rows[0]
            inverse = np.linalg.inv(damped[np.ix_(open_rows, open_rows)])
            codes[row, output] = np.clip(np.rint(left[row]), -127, 127)
            left[open_rows] -= (left[row] - codes[row, output]) / inverse[0, 0] * inverse[0]
            open_rows = open_rows[1:]
    return codes


def test_the_codes_are_those_of_the_elimination_where_it_helps():
    matrix, moments = correlated(70, 4)  # more rows than a block
    nearest, scale = quantize_weight(matrix, reduce_range=False)
    expected = eliminated(matrix, scale, moments)
    gains = output_errors(matrix, expected, scale, moments) < output_errors(matrix, nearest, scale, moments)
    found = gptq(matrix, nearest, scale, moments, reduce_range=False)
    np.testing.assert_array_equal(found, np.where(gains, expected, nearest))
    assert gains.all()


@pytest.mark.parametrize("reduce_range", ["pairs", True, False])
def test_every_output_errs_less_than_with_the_nearest_codes_and_the_limits_hold(reduce_range):
    matrix, moments = correlated(96, 24, seed=1)
    matrix[0, :] = 3 * np.abs(matrix).max()  # of one pair with a large sum
    matrix[1, ::2] = matrix[0, ::2]
    nearest, scale = quantize_weight(matrix, reduce_range=reduce_range)
    codes = gptq(matrix, nearest, scale, moments, reduce_range).astype(int)
    errors = [output_errors(matrix, one, scale, moments) for one in (codes, nearest)]
    assert (errors[0] < errors[1]).all()
    assert errors[0].sum() < 0.5 * errors[1].sum()
    assert np.abs(codes).max() <= (64 if reduce_range is True else 127)
    if reduce_range == "pairs":
        assert np.abs(codes[::2] + codes[1::2]).max() <= 128


def test_inputs_without_anything_in_common_or_without_any_value_keep_the_nearest_codes():
    matrix, _ = correlated(20, 6)
    nearest, scale = quantize_weight(matrix)
    for moments in (np.diag(np.arange(1.0, 21.0)), np.zeros((20, 20))):
        np.testing.assert_array_equal(gptq(matrix, nearest, scale, moments), nearest)


@pytest.fixture(scope="module")
def task():
    return tiny_task()


@pytest.mark.parametrize("family", ["bert", "albert"])
def test_the_chosen_codes_stand_in_the_graph_and_err_less(family, task):
    model, examples = tiny_taskmodel(family, task.spec), task.train[:16]
    form = next(default_forms(model, ("static",), examples))
    scheme = form.scheme
    assert scheme.codes.keys() == scheme.ranges.keys() == scheme.bias.keys()
    graph = onnx_graph(model, scheme, merged=False).graph
    stored = [onnx.numpy_helper.to_array(w) for w in graph.graph.initializer if w.data_type == onnx.TensorProto.INT8]
    seen = Calibration.of(model, examples)
    linear = seen.linear(())
    moments = seen._moments(linear, scheme)
    fewer = 0
    for node, (x, matrix) in linear.items():
        exact = matrix * np.array(scheme.smooth[node], np.float32)[:, None]
        nearest, scale = scheme.quantized(exact)
        codes = np.frombuffer(scheme.codes[node], np.int8).reshape(matrix.shape)
        assert any(np.array_equal(codes, one) for one in stored)
        both = [float(output_errors(exact, one, scale, moments[x]).sum()) for one in (codes, nearest)]
        fewer += both[0] < both[1]
        if family == "bert":
            assert both[0] < both[1]
    assert fewer > len(linear) / 2  # with shared weights all layers together decide
    if family == "albert":
        assert len({*scheme.codes.values()}) < len(scheme.codes)


def test_codes_stand_in_no_record_and_go_with_their_layer(task):
    model, examples = tiny_taskmodel("bert", task.spec), task.train[:8]
    form = next(default_forms(model, ("static",), examples))
    known = form.scheme.model_dump(mode="json")
    assert "codes" not in known
    every = list(form.scheme.ranges)
    assert only(form.scheme, every[1:], every).codes.keys() == set(every[1:])
    assert Int8.model_validate(known).codes == {}


def test_several_passes_give_the_same_codes(task, monkeypatch):
    seen = Calibration.of(tiny_taskmodel("bert", task.spec), task.train[:8])
    linear = seen.linear(())
    scheme = Int8(activations="static", ranges=seen.ranges(linear, {}, "min_max", 100))
    codes = seen.codes(linear, scheme)
    monkeypatch.setattr(calibration, "MOMENTS", 1)
    assert seen.codes(linear, scheme) == codes
