"""A model in OpenVINO's own form: the graph in ``openvino_model.xml``, its weights in ``openvino_model.bin``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compress.export.engines import MODEL_FILES, first_line
from compress.export.extras import optional
from compress.export.folder import AGREEMENT, ExportReport, Written, write_export
from compress.export.int8 import Int8
from compress.export.onnx import onnx_graph
from eval.errors import CompressError
from teachers.taskmodel import TaskModel


def export_openvino(
    model: TaskModel,
    folder: str | Path,
    *,
    int8: bool | Int8 | None = None,
    examples: Sequence[Mapping[str, Any]] = (),
    name: str | None = None,
    agreement: float = AGREEMENT,
) -> ExportReport:
    """Write a folder that OpenVINO, the ``Runtime`` of this package or its own ``predict.py`` loads.

    It is our ONNX graph, converted. OpenVINO has no 8-bit products with one range a batch, so where the scheme asks
    for them each token gets a range of its own.

    Args:
        model: A model with its tokenizer and task, or an artifact.
        folder: A new or empty folder, or an earlier export.
        int8: As ``write_export`` takes it, and so are the rest.
        examples: Real inputs for the gate.
        name: What reports call the export.
        agreement: For int8, the least share of equal decisions.

    Raises:
        UserError: If OpenVINO is not installed, the folder holds something else, or a pattern names no module.
        CompressError: If the model cannot be converted, the disk refuses, or the export does not answer as the model.
    """
    openvino = optional("openvino", "openvino")

    def write(beside: Path, scheme: Int8 | None) -> Written:
        if scheme is not None and scheme.activations == "tensor":
            scheme = scheme.model_copy(update={"activations": "token"})
        graph, written = onnx_graph(model, scheme)
        try:
            network = openvino.Core().read_model(graph.SerializeToString())
        except RuntimeError as error:
            raise CompressError(f"{model.name}: OpenVINO cannot convert it ({first_line(error)})") from error
        openvino.save_model(network, str(beside / MODEL_FILES["openvino"][0]), compress_to_fp16=False)
        return written

    return write_export(model, folder, "openvino", write, int8=int8, examples=examples, name=name, agreement=agreement)
