"""A model as an ONNX folder, and as the ONNX graph from which other targets are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

from compress.export.engines import MODEL_FILES
from compress.export.folder import AGREEMENT, ExportReport, Written, write_export
from compress.export.gate import TOLERANCE
from compress.export.int8 import Int8
from compress.export.tracing import OPSET, trace
from compress.modules.fake_quant import in_float
from teachers.taskmodel import TaskModel


def export_onnx(
    model: TaskModel,
    folder: str | Path,
    *,
    int8: bool | Int8 | None = None,
    examples: Sequence[Mapping[str, Any]] = (),
    name: str | None = None,
    opset: int = OPSET,
    tolerance: float = TOLERANCE,
    agreement: float = AGREEMENT,
) -> ExportReport:
    """Write a folder that ONNX Runtime, the ``Runtime`` of this package or its own ``predict.py`` loads.

    Args:
        model: A model with its tokenizer and task, or an artifact.
        folder: A new or empty folder, or an earlier export.
        int8: As ``write_export`` takes it, and so are the rest.
        examples: Real inputs for the gate.
        name: What reports call the export.
        opset: Version of the ONNX operators.
        tolerance: For float32, the largest difference of a logit relative to the largest logit.
        agreement: For int8, the least share of equal decisions.

    Raises:
        UserError: If the folder holds something else, a pattern names no module, or the model is too large.
        CompressError: If the model cannot be exported, the disk refuses, or the export does not answer as the model.
    """
    rest: dict[str, Any] = {"tolerance": tolerance, "agreement": agreement}
    write = partial(write_onnx, opset=opset)
    return write_export(model, folder, target="onnx", write=write, int8=int8, examples=examples, name=name, **rest)


def write_onnx(model: TaskModel, beside: Path, scheme: Int8 | None, opset: int = OPSET) -> Written:
    """Write ``model.onnx``; see ``write_export``."""
    import onnx

    graph, written = onnx_graph(model, scheme, opset)
    onnx.save(graph, str(beside / MODEL_FILES["onnx"][0]))
    return written


def onnx_graph(model: TaskModel, scheme: Int8 | None, opset: int = OPSET) -> tuple[Any, Written]:
    """Return a model as one checked ONNX graph, and what is to be said of it.

    Args:
        model: What is exported; it is left as it was.
        scheme: How it becomes 8-bit; None keeps float32.
        opset: Version of the ONNX operators.

    Raises:
        CompressError: If no exporter can.
    """
    import onnx

    joined: Callable[[list[Any]], Any]
    plain = model if scheme is None else replace(model, model=in_float(model.model))
    if hasattr(model.model, "stops"):  # early exits
        from compress.export.exits import join_exits, trace_exits

        parts, exporter = trace_exits(plain, opset)
        joined = partial(join_exits, stops=model.model.stops, speed=model.model.config.speed)
    else:
        graph, exporter = trace(plain, opset)
        parts, joined = [graph], itemgetter(0)
    float_bytes = int(joined(parts).ByteSize())
    quantized = None
    if scheme is not None:
        from compress.export.int8_graph import quantize_graph

        facts = [quantize_graph(part, scheme) for part in parts]
        quantized = {key: sum((fact[key] for fact in facts[1:]), facts[0][key]) for key in facts[0]}
    graph = joined(parts)
    onnx.checker.check_model(graph)
    used = max(entry.version for entry in graph.opset_import if entry.domain in ("", "ai.onnx"))
    return graph, Written(exporter, float_bytes, used, quantized)
