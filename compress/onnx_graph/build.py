"""From a model to its ONNX graph: traced, made int8 if wanted, its early exits joined; all that goes through ONNX."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any

import onnx

from compress.modules.fake_quant import in_float
from compress.modules.int8_scheme import Int8
from compress.onnx_graph.cached_decoder import trace_with_cache
from compress.onnx_graph.cached_writer import trace_reader, trace_writer
from compress.onnx_graph.exit_branches import join_exits, trace_exits
from compress.onnx_graph.float_graph import float_graph
from compress.onnx_graph.int8_graph import quantize_graph
from compress.onnx_graph.merged_products import merge_products
from compress.onnx_graph.one_token import every_token, narrow_to_one_token
from compress.onnx_graph.tied_weights import tie_transposed
from compress.onnx_graph.tracing import OPSET
from teachers.taskmodel import TaskModel


@dataclass(frozen=True)
class OnnxGraph:
    """A model as one checked ONNX graph.

    Attributes:
        graph: The ONNX model.
        parts: What it was joined of: a graph for each early exit, as ``trace_exits`` returns them, else it alone.
        exporter: What traced it: ``tracer`` or ``dynamo``.
        float_bytes: What it would be in float32.
        opset: Version of its operators.
        quantized: For int8, what became 8-bit; see ``quantize_graph``.
        one_token: Products that are computed for the one token that the head reads; see ``narrow_to_one_token``.
        every_token: Why others of the last layer are not.
    """

    graph: Any
    parts: tuple[Any, ...]
    exporter: str
    float_bytes: int
    opset: int
    quantized: Mapping[str, Any] | None
    one_token: tuple[str, ...]
    every_token: str


def onnx_graph(
    model: TaskModel, scheme: Int8 | None, opset: int | None = None, cache: bool = False, merged: bool = True
) -> OnnxGraph:
    """Return a model as one checked ONNX graph.

    Args:
        model: What is exported; it is left as it was.
        scheme: How it becomes 8-bit; None keeps float32.
        opset: Version of the ONNX operators; by default ``tracing.OPSET``.
        cache: Whether it is a decoder's, with a cache of keys and values; see ``cached_decoder``.
        merged: Whether products of the same input become one; see ``merge_products``.

    Raises:
        CompressError: If no exporter can.
    """
    joined: Callable[[list[Any]], Any]
    plain = model if scheme is None else replace(model, model=in_float(model.model))
    if hasattr(model.model, "stops"):  # early exits
        parts, exporter = trace_exits(plain, opset or OPSET)
        one_token = tuple(name for part in parts for name in narrow_to_one_token(part))
        joined = partial(join_exits, stops=model.model.stops, speed=model.model.config.speed)
    elif cache:
        graph, exporter = trace_with_cache(plain, opset)
        parts, one_token, joined = [graph], (), itemgetter(0)
    else:
        found = float_graph(plain, opset)
        parts, exporter, one_token, joined = [found.graph], found.exporter, found.one_token, itemgetter(0)
    return _built(model, parts, exporter, scheme, one_token, joined, merged)


def writer_graphs(model: TaskModel, scheme: Int8 | None, opset: int | None = None) -> tuple[OnnxGraph, OnnxGraph]:
    """Return a model with an encoder and a decoder as two checked graphs: the one that writes, and the one that reads.

    Args:
        model: What is exported; it is left as it was.
        scheme: How both become 8-bit; None keeps float32.
        opset: Version of the ONNX operators; by default ``tracing.OPSET``.

    Raises:
        CompressError: If no exporter can.
    """
    plain = model if scheme is None else replace(model, model=in_float(model.model))
    writer, reader = (
        _built(model, [graph], exporter, scheme, (), itemgetter(0), merged=True)
        for graph, exporter in (trace_writer(plain, opset), trace_reader(plain, opset))
    )
    return writer, reader


def _built(
    model: TaskModel,
    parts: list[Any],
    exporter: str,
    scheme: Int8 | None,
    one_token: tuple[str, ...],
    joined: Callable[[list[Any]], Any],
    merged: bool,
) -> OnnxGraph:
    finished = partial(_finished, joined=joined, merged=merged)
    float_bytes, quantized = 0, None
    if scheme is not None:
        float_bytes = int(finished(copy.deepcopy(parts)).ByteSize())
        facts = [quantize_graph(part, scheme) for part in parts]
        quantized = {key: sum((fact[key] for fact in facts[1:]), facts[0][key]) for key in facts[0]}
    graph = finished(parts)
    onnx.checker.check_model(graph)
    float_bytes = float_bytes or int(graph.ByteSize())
    used = max(entry.version for entry in graph.opset_import if entry.domain in ("", "ai.onnx"))
    narrowed = one_token, every_token(model, one_token)
    return OnnxGraph(graph, tuple(parts), exporter, float_bytes, used, quantized, *narrowed)


def _finished(parts: list[Any], joined: Callable[[list[Any]], Any], merged: bool) -> Any:
    if merged:
        for part in parts:
            merge_products(part)
    graph = joined(parts)
    tie_transposed(graph)
    return graph
