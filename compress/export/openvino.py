"""A model in OpenVINO's own form: the graph in ``openvino_model.xml``, its weights in ``openvino_model.bin``."""

from __future__ import annotations

from pathlib import Path

from compress.export.engines import MODEL_FILES, first_line
from compress.export.extras import optional
from compress.export.folder import Written
from compress.export.int8 import Int8
from compress.export.onnx import onnx_graph
from eval.errors import CompressError
from teachers.taskmodel import TaskModel


def write_openvino(model: TaskModel, beside: Path, scheme: Int8 | None) -> Written:
    """Write our ONNX graph, converted; see ``write_export``.

    OpenVINO has no 8-bit products with one range a batch, so where the scheme asks for them each token gets a range of
    its own.

    Raises:
        UserError: If OpenVINO is not installed.
        CompressError: If it cannot convert the graph.
    """
    openvino = optional("openvino", "openvino")
    if scheme is not None and scheme.activations == "tensor":
        scheme = scheme.model_copy(update={"activations": "token"})
    graph, written = onnx_graph(model, scheme)
    try:
        network = openvino.Core().read_model(graph.SerializeToString())
    except RuntimeError as error:
        raise CompressError(f"{model.name}: OpenVINO cannot convert it ({first_line(error)})") from error
    openvino.save_model(network, str(beside / MODEL_FILES["openvino"][0]), compress_to_fp16=False)
    return written
