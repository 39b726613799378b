"""8-bit products as another kind of processor gives them, bit for bit: what an export will answer there."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from compress.export.check.reference_operators import OPERATORS
from compress.export.runtime.answering import Runtime
from compress.export.runtime.manifest import library_for, read_manifest
from compress.onnx_graph.rewrites import set_nodes
from eval.encoding import Array, Inputs
from eval.errors import UserError

Arithmetic = Literal["avx2", "vnni"]
ARITHMETICS: dict[Arithmetic, str] = {
    "avx2": "x86 with AVX2 or AVX-512 and without VNNI: two products are added in 16 bits, and saturate",
    "vnni": "x86 with VNNI or AMX, and ARM with dot products: sums are exact",
}
LEAST, MOST = -(2**15), 2**15 - 1
"""What 16 bits hold."""
LARGEST_ACTIVATION = 255
ENTRIES = 1 << 24
"""Sums of two products that are held at once."""


def product(u: Array, q: Array, arithmetic: Arithmetic) -> Array:
    """Return ``u @ q`` in int32 as a processor of this kind computes it.

    VPMADDUBSW of AVX2 and AVX-512 multiplies uint8 by int8 and adds each two neighbours along ``n`` in 16 bits,
    ``clip(u_0 q_0 + u_1 q_1, -32768, 32767)``; VPDPBUSD of VNNI adds four products in 32 bits.

    Args:
        u: uint8 ``[rows, n]``.
        q: int8 ``[n, columns]``.
        arithmetic: The kind.
    """
    exact = (u.astype(np.float64) @ q.astype(np.float64)).astype(np.int32)  # float64 holds these sums exactly
    return exact if arithmetic == "vnni" else exact - _Saturating(q).excess(u)


class _Saturating:
    """The few pairs of weights whose sum may leave 16 bits; the others never do, whatever they are multiplied by."""

    def __init__(self, q: Array) -> None:
        q = np.pad(q.astype(np.int32), ((0, len(q) % 2), (0, 0)))
        self.columns = q.shape[1]
        first, second = q[0::2], q[1::2]
        most = np.maximum(first, 0) + np.maximum(second, 0)
        least = np.minimum(first, 0) + np.minimum(second, 0)
        able = (most * LARGEST_ACTIVATION > MOST) | (least * LARGEST_ACTIVATION < LEAST)
        self.column, self.pair = np.nonzero(able.T)  # by column, so that the pairs of one stand together
        self.first, self.second = first[able.T.nonzero()[::-1]], second[able.T.nonzero()[::-1]]

    def excess(self, u: Array) -> Array:
        """Return what saturation takes from each sum, ``[rows, columns]`` in int32."""
        lost = np.zeros((len(u), self.columns), np.int32)
        if not len(self.pair):
            return lost
        u = np.pad(u.astype(np.int32), ((0, 0), (0, u.shape[1] % 2)))
        starts = np.flatnonzero(np.r_[True, np.diff(self.column) > 0])
        rows = max(1, ENTRIES // len(self.pair))
        for start in range(0, len(u), rows):
            some = u[start : start + rows]
            sums = some[:, 2 * self.pair] * self.first + some[:, 2 * self.pair + 1] * self.second
            over = sums - np.clip(sums, LEAST, MOST)
            lost[start : start + rows, self.column[starts]] = np.add.reduceat(over, starts, axis=1)
        return lost


class _MatMulInteger(OpRun):  # type: ignore[misc]
    op_domain = ""
    op_schema = onnx.defs.get_schema("MatMulInteger")
    arithmetic: ClassVar[Arithmetic]
    known: ClassVar[dict[int, tuple[Array, _Saturating, Array]]]
    """What was found out about a matrix, by its id."""

    def _run(self, u: Array, q: Array, zero: Array | None = None) -> tuple[Array]:
        _, saturating, sums = self.known.setdefault(id(q), (q, _Saturating(q), q.sum(axis=0, dtype=np.int32)))
        rows = u.reshape(-1, u.shape[-1])
        found = product(rows, q, "vnni")
        if self.arithmetic == "avx2":
            found -= saturating.excess(rows)
        found = found if zero is None else found - np.int32(zero) * sums
        return (found.reshape(*u.shape[:-1], -1),)


def in_integers(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a graph whose products of 8-bit numbers that became float are MatMulInteger, as runtimes compute them.

    ``MatMul((u - zero) * s, q * scale)`` becomes ``MatMulInteger(u, q, zero) * (s * scale)``; products without a
    constant int8 matrix stay as they are.
    """
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    weights = {weight.name for weight in model.graph.initializer if weight.data_type == onnx.TensorProto.INT8}
    back = {node.output[0]: node.input for node in model.graph.node if node.op_type == "DequantizeLinear"}
    nodes = []
    for node in model.graph.node:
        u, q = (back.get(name) for name in node.input) if node.op_type == "MatMul" else (None, None)
        if u is None or q is None or q[0] not in weights:
            nodes.append(node)
            continue
        sums, numbers, scale = (f"{node.output[0]}_{part}" for part in ("sums", "numbers", "scale"))
        nodes += [
            onnx.helper.make_node("MatMulInteger", [u[0], q[0], u[2]], [sums], node.name),
            onnx.helper.make_node("Cast", [sums], [numbers], to=onnx.TensorProto.FLOAT),
            onnx.helper.make_node("Mul", [u[1], q[1]], [scale]),
            onnx.helper.make_node("Mul", [numbers, scale], [node.output[0]]),
        ]
    used = {name for node in nodes for name in node.input}
    set_nodes(changed.graph, [node for node in nodes if node.op_type != "DequantizeLinear" or node.output[0] in used])
    return changed


class ReferenceEngine:
    """Onnx's reference operators in numpy, which share no code with ONNX Runtime; slow.

    Args:
        file: The ``.onnx`` file.
        arithmetic: The kind of processor whose 8-bit products it has: a key of ``ARITHMETICS``.

    Attributes:
        graph: What it runs.
        session: Onnx's own object.
    """

    def __init__(self, file: Path, arithmetic: Arithmetic = "vnni") -> None:
        model = in_integers(onnx.load(str(file)))
        products = type("MatMulInteger", (_MatMulInteger,), {"arithmetic": arithmetic, "known": {}})
        self.graph: Any = model.graph
        self.session: Any = ReferenceEvaluator(model, new_ops=[products, *OPERATORS])

    def run(self, inputs: Inputs) -> dict[str, Array]:
        """Return the outputs by name."""
        with np.errstate(over="ignore"):  # GPT-Neo adds two masks, so what both hide is at minus infinity
            return dict(zip(self.session.output_names, self.session.run(None, inputs), strict=True))


class Emulated(Runtime):
    """An export whose 8-bit products are those of a kind of processor, on any machine.

    The float operators are onnx's own, so logits may differ from ONNX Runtime's by float rounding, and where that turns
    a rounding to 8 bits by a step more.

    Args:
        folder: What ``export_onnx`` wrote.
        arithmetic: The kind: a key of ``ARITHMETICS``.
        name: What reports call it.

    Raises:
        UserError: If the export is no ONNX file, or has no 8-bit products.
        ExportError: If it is damaged.
    """

    def __init__(self, folder: str | Path, arithmetic: Arithmetic, name: str | None = None) -> None:
        library = library_for(Path(folder), read_manifest(Path(folder)))
        if not library.is_onnx:
            raise UserError(
                f"{folder}: is for {library.name} and no ONNX file, whose 8-bit products alone are emulated; "
                "export it to onnx"
            )
        engine = ReferenceEngine(Path(folder) / library.files[0], arithmetic)
        if not any(node.op_type == "MatMulInteger" for node in engine.graph.node):
            raise UserError(f"{folder}: has no 8-bit products, so its answers are the same on every processor")
        super().__init__(folder, name=name, engine=engine)
