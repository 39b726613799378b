"""What a processor with AVX2 and without VNNI computes: pairs of u8 x s8 products are added in 16 bits and saturate."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from compress.export.check.arithmetic import in_integers

QEMU = shutil.which("qemu-x86_64-static") or shutil.which("qemu-x86_64")
"""Runs a program on an emulated processor: Haswell has AVX2 and no VNNI."""


def on_haswell(code, *arguments):
    """Run Python code on an emulated Haswell, with the packages and modules of this process; return what it printed."""
    interpreter = str(Path(sys.executable).resolve())
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [QEMU, "-cpu", "Haswell", interpreter, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def saturating_product(u, q):
    """Return ``u @ q`` as VPMADDUBSW gives it; ``u`` uint8 ``[rows, n]``, ``q`` int8 ``[n, columns]``."""
    products = u.astype(np.int32)[:, :, None] * q.astype(np.int32)[None]
    if products.shape[1] % 2:
        products = np.pad(products, ((0, 0), (0, 1), (0, 0)))
    pairs = products.reshape(len(u), -1, 2, q.shape[1]).sum(axis=2)
    return np.clip(pairs, -32768, 32767).sum(axis=1)


def integer_products(file, inputs):
    """Run a graph and yield uint8 ``[rows, n]``, int8 ``[n, columns]`` and the int32 result of each product."""
    model = in_integers(onnx.load(str(file)))
    weights = {weight.name: onnx.numpy_helper.to_array(weight) for weight in model.graph.initializer}
    nodes = [node for node in model.graph.node if node.op_type == "MatMulInteger"]
    wanted = {name: onnx.TensorProto.UINT8 for node in nodes for name in node.input[:1]}
    wanted |= {node.output[0]: onnx.TensorProto.INT32 for node in nodes}
    model.graph.output.extend(onnx.helper.make_tensor_value_info(name, kind, None) for name, kind in wanted.items())
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found = dict(zip(wanted, session.run(list(wanted), dict(inputs)), strict=True))
    for node in nodes:
        u, q = found[node.input[0]], weights[node.input[1]]
        yield u.reshape(-1, u.shape[-1]), q, weights[node.input[2]], found[node.output[0]].reshape(-1, q.shape[1])


def check_exact(file, inputs):
    """Assert that saturating processors give what exact ones do; return how many layers were looked at."""
    nodes = onnx.load(str(file), load_external_data=False).graph.node
    count = sum(len(node.output) - 1 for node in nodes if node.op_type == "Split" and "_joined" in node.input[0])
    for u, q, zero, result in integer_products(file, inputs):
        expected = saturating_product(u, q) - int(zero) * q.astype(np.int64).sum(axis=0)
        np.testing.assert_array_equal(result, expected)
        count += 1
    return count
