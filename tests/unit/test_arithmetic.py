"""The emulated 8-bit products against slow arithmetic, against this machine's own kernels, and where both differ."""

import numpy as np
import onnx
import onnxruntime
import pytest

from compress.export import export_onnx
from compress.export.check.arithmetic import Emulated, product
from compress.export.runtime.answering import Runtime
from compress.modules.int8_scheme import Int8
from eval.cost.machine import VNNI, cpu_features
from eval.errors import UserError
from tests.avx2 import QEMU, on_haswell, saturating_product
from tests.tiny import tiny_task, tiny_taskmodel

HERE = "vnni" if VNNI & set(cpu_features()) else "avx2"


@pytest.mark.parametrize("inner", [2, 7, 64])
def test_products_are_those_of_slow_arithmetic(inner):
    chance = np.random.default_rng(inner)
    u = chance.integers(0, 256, (11, inner)).astype(np.uint8)
    q = chance.integers(-127, 128, (inner, 13)).astype(np.int8)
    assert np.array_equal(product(u, q, "vnni"), u.astype(int) @ q.astype(int))
    assert np.array_equal(product(u, q, "avx2"), saturating_product(u, q))


def test_only_what_leaves_16_bits_saturates():
    u, q = np.full((1, 4), 255, np.uint8), np.full((4, 1), 127, np.int8)
    assert product(u, q, "vnni").item() == 4 * 255 * 127
    assert product(u, q, "avx2").item() == 2 * 32767
    assert product(u, -q, "avx2").item() == -2 * 32768
    assert product(u, q // 2, "avx2").item() == 4 * 255 * 63
    assert product(u, np.array([[127], [-127], [127], [-127]], np.int8), "avx2").item() == 0


def made(tmp_path, large=1.0, **scheme):
    task = tiny_task()
    model = tiny_taskmodel("bert", task.spec)
    model.model.get_parameter("bert.encoder.layer.1.intermediate.dense.weight").data.abs_().mul_(large)
    export_onnx(model, tmp_path / "x", int8=Int8(**scheme), examples=task.validation, agreement=0.0)
    return tmp_path / "x", task


def one_product(u, q, file):
    """Write a graph of one MatMulInteger, and return what ONNX Runtime's own kernel on this machine gives."""
    kinds = onnx.TensorProto
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMulInteger", ["u", "q"], ["y"])],
        "g",
        [onnx.helper.make_tensor_value_info("u", kinds.UINT8, list(u.shape))],
        [onnx.helper.make_tensor_value_info("y", kinds.INT32, [len(u), q.shape[1]])],
        [onnx.numpy_helper.from_array(q, "q")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(file))
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return session.run(None, {"u": u})[0]


@pytest.mark.parametrize("shape", [(1, 384, 1536), (40, 1536, 384), (33, 50, 17)])
def test_products_are_those_of_this_machine_bit_for_bit(shape, tmp_path):
    u, q = numbers(*shape)
    assert np.array_equal(one_product(u, q, tmp_path / "p.onnx"), product(u, q, HERE))


def numbers(rows, inner, columns):
    chance = np.random.default_rng(3)
    u = chance.integers(0, 256, (rows, inner)).astype(np.uint8)
    return u, (chance.integers(-127, 128, (inner, columns)) // chance.integers(1, 4, (inner, columns))).astype(np.int8)


@pytest.mark.skipif(QEMU is None, reason="qemu-user is not installed, which emulates a processor without VNNI")
def test_products_are_those_of_an_avx2_machine_bit_for_bit(tmp_path):
    u, q = numbers(7, 384, 100)
    one_product(u, q, tmp_path / "p.onnx")
    np.save(tmp_path / "u.npy", u)
    code = (
        "import sys, numpy as np, onnxruntime\n"
        "session = onnxruntime.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])\n"
        "np.save(sys.argv[3], session.run(None, {'u': np.load(sys.argv[2])})[0])"
    )
    on_haswell(code, tmp_path / "p.onnx", tmp_path / "u.npy", tmp_path / "y.npy")
    found = np.load(tmp_path / "y.npy")
    assert np.array_equal(found, product(u, q, "avx2"))
    assert not np.array_equal(found, product(u, q, "vnni")), "some of these sums saturate"


@pytest.mark.skipif(QEMU is None, reason="qemu-user is not installed, which emulates a processor without VNNI")
@pytest.mark.parametrize("reduced", [True, "pairs", False])
def test_an_export_answers_on_an_avx2_machine_as_emulated(reduced, tmp_path):
    folder, task = made(tmp_path, reduce_range=reduced)
    emulated, exact = Emulated(folder, "avx2"), Emulated(folder, "vnni")
    inputs = emulated.encoder.collate(emulated.encoder.encode(task.validation))
    np.savez(tmp_path / "inputs.npz", **inputs)
    code = (
        "import sys, numpy as np\nfrom compress.export.runtime.answering import Runtime\n"
        "np.save(sys.argv[3], Runtime(sys.argv[1]).forward(dict(np.load(sys.argv[2]))))"
    )
    on_haswell(code, folder, tmp_path / "inputs.npz", tmp_path / "y.npy")
    found = np.load(tmp_path / "y.npy")
    assert np.median(np.abs(found - emulated.forward(inputs))) < 1e-5
    far = np.abs(emulated.forward(inputs) - exact.forward(inputs)).max()
    assert (far == 0) == bool(reduced), "seven bits and small pairs are exact everywhere, eight bits saturate"


@pytest.mark.parametrize("activations", ["token", "tensor"])
@pytest.mark.parametrize("reduced", ["pairs", False])
def test_a_whole_export_answers_as_on_this_machine(activations, reduced, tmp_path):
    folder, task = made(tmp_path, activations=activations, reduce_range=reduced)
    real, emulated = Runtime(folder), Emulated(folder, HERE)
    inputs = real.encoder.collate(real.encoder.encode(task.validation))
    expected, found = real.forward(inputs), emulated.forward(inputs)
    difference = np.abs(found - expected)
    assert np.median(difference) < 1e-5
    assert difference.max() < 0.02, "the last bit of a float may decide a step"
    assert emulated.predict(["a line"]).answers[0]["label"] == real.predict(["a line"]).answers[0]["label"]


def test_reduced_weights_are_alike_everywhere_and_eight_bits_are_not(tmp_path):
    for reduced in (True, "pairs", False):
        folder, task = made(tmp_path / str(reduced), reduce_range=reduced)
        kinds = [Emulated(folder, kind) for kind in ("avx2", "vnni")]
        inputs = kinds[0].encoder.collate(kinds[0].encoder.encode(task.validation))
        one, other = (kind.forward(inputs) for kind in kinds)
        assert np.array_equal(one, other) == bool(reduced)


def test_a_float_export_has_nothing_to_emulate(tmp_path):
    task = tiny_task()
    export_onnx(tiny_taskmodel("bert", task.spec), tmp_path / "x", examples=task.validation)
    with pytest.raises(UserError, match="has no 8-bit products, so its answers are the same on every processor"):
        Emulated(tmp_path / "x", "avx2")
