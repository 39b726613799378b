"""How much faster exports are because their last layer is computed for the one token that the head reads.

    COMPRESS_BASE=… python -m benchmarks.last_layer [--layers 6 3] [--tokens 32 128 384] [--rows 1 16] [--fill]

The base model with a new head, its first layers, one thread. The same graph with and without the narrowing, in float32
and in 8 bits, is run alternately in a random order in one process; a factor is the median of the ratios of the same
rounds, with its 95% interval. Times are processor time of the process, so that neighbours on the machine count less.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime

from benchmarks.archive import keep
from benchmarks.distillation_step import base
from benchmarks.markdown_table import markdown_table
from benchmarks.results import DOCS, fill
from benchmarks.scaling import inputs
from compress.modules.int8_scheme import Int8
from compress.onnx_graph.int8_graph import quantize_graph
from compress.onnx_graph.one_token import narrow_to_one_token
from compress.onnx_graph.tracing import trace
from eval.cost.machine import in_one_line
from eval.cost.timing import interleave, paired_ratio
from eval.task import TaskSpec
from teachers.anatomy.layer_changes import replace_layers
from teachers.taskmodel import load_taskmodel

NAME = "last-layer"
"""Name of the record, and of the part of the page that is made here."""
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
    run: Run = request.infer
    return run


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


def measured(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the figures of each case: milliseconds of both graphs, their ratio, and how far their logits differ."""
    for layers, (numbers, pair) in ((count, one) for count in given.layers for one in graphs(count).items()):
        whole, narrow = (ENGINES[given.engine](graph) for graph in pair)
        for rows, tokens in ((rows, tokens) for rows in given.rows for tokens in given.tokens):
            batch = inputs(rows, tokens)
            found = [run(batch) for run in (whole, narrow)]
            logits = [np.asarray(next(iter(one.values())) if given.engine == "openvino" else one[0]) for one in found]
            times = interleave({"all": timed(whole, batch), "one": timed(narrow, batch)}, given.seconds)
            medians = {name: np.median(taken, axis=1) for name, taken in times.items()}
            factor = paired_ratio(medians["all"], medians["one"])
            yield {
                "layers": layers,
                "numbers": numbers,
                "shape": f"{rows} x {tokens}",
                "milliseconds": [1000 * float(np.median(taken)) for taken in medians.values()],
                "factor": [factor.value, factor.low, factor.high],
                "difference": float(np.abs(logits[0] - logits[1]).max()),
            }


def table(cases: Iterable[Mapping[str, Any]]) -> str:
    """Return the cases as Markdown."""
    rows = [["layers", "numbers", "rows x tokens", "all tokens, ms", "one token, ms", "factor [95%]", "difference"]]
    for one in cases:
        whole, narrow = one["milliseconds"]
        factor = "{:.2f} [{:.2f}, {:.2f}]".format(*one["factor"])
        cells = [one["layers"], one["numbers"], one["shape"], f"{whole:.2f}", f"{narrow:.2f}", factor]
        rows.append([*map(str, cells), f"{one['difference']:.0e}"])
    return markdown_table(rows)


def report(found: Mapping[str, Any]) -> str:
    """Return the table of what was kept, and what it was measured on."""
    return f"{table(found['cases'])}\n\n{found['engine']}; {in_one_line(found['machine'])}; commit {found['commit']}."


def main() -> None:
    """Measure, print, and write the page if asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[6, 3])
    parser.add_argument("--tokens", type=int, nargs="+", default=[32, 128, 384])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--engine", choices=ENGINES, default="onnxruntime")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--fill", action="store_true", help="keep the figures and write docs/results/inference.md")
    given = parser.parse_args()
    cases = list(measured(given))
    print(table(cases))
    if given.fill:
        fill(DOCS / "inference.md", NAME, report(keep(NAME, {"engine": given.engine, "cases": cases})))


if __name__ == "__main__":
    main()
