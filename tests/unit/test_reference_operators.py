"""The operators that onnx's reference lacks, against ONNX Runtime's own."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

from compress.export.check.reference_operators import OPERATORS

CHANCE = np.random.default_rng(3)


def both(node, inputs, opset=17):
    """Answer one node's graph by onnx's reference with our operators, and by ONNX Runtime."""
    given = [onnx.helper.make_tensor_value_info(name, _kind(array), array.shape) for name, array in inputs.items()]
    out = [onnx.helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    domains = [onnx.helper.make_opsetid("", opset), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "one", given, out), opset_imports=domains, ir_version=8
    )
    ours = ReferenceEvaluator(model, new_ops=OPERATORS).run(None, inputs)[0]
    theirs = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, inputs
    )
    return ours, theirs[0]


def _kind(array):
    return onnx.helper.np_dtype_to_tensor_dtype(array.dtype)


@pytest.mark.parametrize(("axis", "scales"), [(1, ()), (1, (5,)), (0, (4,)), (-1, (6,))])
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_dequantize_linear(kind, axis, scales):
    x = CHANCE.integers(0, 100, (4, 5, 6)).astype(kind)
    inputs = {"x": x, "scale": CHANCE.random(scales, dtype=np.float32) + 0.1}
    inputs = {name: np.asarray(value) for name, value in inputs.items()}
    inputs["zero"] = np.asarray(CHANCE.integers(0, 100, scales), kind)
    ours, theirs = both(onnx.helper.make_node("DequantizeLinear", list(inputs), ["y"], axis=axis), inputs)
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("with_zeros", [True, False])
@pytest.mark.parametrize(("bits", "block"), [(4, 32), (4, 16), (8, 32)])
def test_matmul_n_bits(bits, block, with_zeros):
    inner, outer, blocks = 3 * block - 5, 7, 3
    inputs = {
        "x": CHANCE.standard_normal((2, 3, inner), dtype=np.float32),
        "codes": CHANCE.integers(0, 256, (outer, blocks, block * bits // 8)).astype(np.uint8),
        "scales": CHANCE.random((outer, blocks), dtype=np.float32),
    }
    if with_zeros:
        inputs["zeros"] = CHANCE.integers(0, 256, (outer, (blocks * bits + 7) // 8)).astype(np.uint8)
    sizes = {"K": inner, "N": outer, "bits": bits, "block_size": block}
    ours, theirs = both(
        onnx.helper.make_node("MatMulNBits", list(inputs), ["y"], domain="com.microsoft", **sizes), inputs
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-2)
    assert np.abs(theirs).max() > 1
