"""How much faster exports are because their last layer is computed for the one token that the head reads.

    COMPRESS_BASE=… python -m benchmarks.last_layer [--layers 6 3] [--tokens 32 128 384] [--rows 1 16] [--seconds 2]

The base model with a new head, its first layers, one thread. The same graph with and without the narrowing, in float32
and in 8 bits, is run alternately in a random order in one process; a factor is the median of the ratios of the same
rounds, with its 95% interval. Times are processor time of the process, so that neighbours on the machine count less.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime

from benchmarks.distillation_step import base
from benchmarks.scaling import inputs
from compress.modules.int8_scheme import Int8
from compress.onnx_graph.int8_graph import quantize_graph
from compress.onnx_graph.one_token import narrow_to_one_token
from compress.onnx_graph.tracing import trace
from eval.cost.timing import interleave, paired_ratio
from eval.task import TaskSpec
from teachers.anatomy.encoder import replace_layers
from teachers.taskmodel import load_taskmodel

Run = Callable[[dict[str, Any]], Any]


def in_onnxruntime(graph: onnx.ModelProto) -> Run:
    """Return what runs a graph in ONNX Runtime with one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda given: session.run(None, given)


def in_openvino(graph: onnx.ModelProto) -> Run:
    """Return what runs a graph in OpenVINO with one thread, in the precision that it takes by itself."""
    import openvino

    core = openvino.Core()
    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": 1}
    request = core.compile_model(core.read_model(graph.SerializeToString()), "CPU", settings).create_infer_request()
    return request.infer


ENGINES = {"onnxruntime": in_onnxruntime, "openvino": in_openvino}


def graphs(layers: int) -> dict[str, tuple[onnx.ModelProto, onnx.ModelProto]]:
    """Return for float32 and int8 the graph for all tokens, and the one that ends in one token."""
    model = load_taskmodel(base(), TaskSpec(kind="classification", labels=("a", "b"), max_length=512))
    replace_layers(model.model, list(range(layers)))
    whole, _ = trace(model)
    narrow = onnx.ModelProto()
    narrow.CopyFrom(whole)
    narrow_to_one_token(narrow)
    in_8_bits = [onnx.ModelProto.FromString(graph.SerializeToString()) for graph in (whole, narrow)]
    for graph in in_8_bits:
        quantize_graph(graph, Int8())
    return {"float32": (whole, narrow), "int8": (in_8_bits[0], in_8_bits[1])}


def timed(run: Run, given: dict[str, Any]) -> Callable[[int], float]:
    """Return a run that says how much processor time it took."""

    def once(_: int) -> float:
        start = time.process_time()
        run(given)
        return time.process_time() - start

    return once


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[6, 3])
    parser.add_argument("--tokens", type=int, nargs="+", default=[32, 128, 384])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--engine", choices=ENGINES, default="onnxruntime")
    parser.add_argument("--seconds", type=float, default=2.0)
    given = parser.parse_args()
    print("| layers | numbers | rows x tokens | all tokens, ms | one token, ms | factor | 95% | difference |")
    print("|---|---|---|---|---|---|---|---|")
    for layers in given.layers:
        for numbers, pair in graphs(layers).items():
            whole, narrow = (ENGINES[given.engine](graph) for graph in pair)
            for rows, tokens in ((rows, tokens) for rows in given.rows for tokens in given.tokens):
                batch = inputs(rows, tokens)
                logits = [
                    np.asarray(next(iter(run(batch).values())) if given.engine == "openvino" else run(batch)[0])
                    for run in (whole, narrow)
                ]
                times = interleave({"all": timed(whole, batch), "one": timed(narrow, batch)}, given.seconds)
                medians = {name: np.median(taken, axis=1) for name, taken in times.items()}
                factor = paired_ratio(medians["all"], medians["one"])
                milliseconds = " | ".join(f"{1000 * float(np.median(taken)):.2f}" for taken in medians.values())
                difference = float(np.abs(logits[0] - logits[1]).max())
                print(
                    f"| {layers} | {numbers} | {rows} x {tokens} | {milliseconds} | {factor.value:.3f} | "
                    f"{factor.low:.3f} to {factor.high:.3f} | {difference:.1e} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
