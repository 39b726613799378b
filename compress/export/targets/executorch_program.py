"""From a torch model to an ExecuTorch program, whose products XNNPACK runs."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from torch import nn

from compress.modules.fake_quant import in_float
from compress.modules.int8_scheme import Int8, is_excluded, quantize_rows
from compress.modules.masked import TABLE
from compress.onnx_graph.int8_graph import SMALL
from compress.onnx_graph.tracing import TOKENS, Logits, distinct_inputs, ready
from eval.errors import CompressError
from eval.one_line import first_line
from teachers.taskmodel import TaskModel

MOST_ROWS = 8
"""Largest batch that memory is planned for; the ``Runtime`` runs larger ones in parts."""


def executorch_program(model: TaskModel, scheme: Int8 | None) -> tuple[Any, int, dict[str, Any] | None]:
    """Return a model as an ExecuTorch program, its bytes in float32, and for int8 what became 8-bit.

    Args:
        model: What is exported; it is left as it was.
        scheme: How it becomes 8-bit; None keeps float32. ``exclude`` and ``embeddings`` alone count here.

    Raises:
        CompressError: If the model cannot be converted.
    """
    network = model.model if scheme is None else copy.deepcopy(in_float(model.model))
    with ready(network) as lent:
        float_bytes = 4 * sum(parameter.numel() for parameter in lent.parameters())
        quantized = None if scheme is None else _quantize(lent, scheme)
        try:
            return _lowered(lent, model), float_bytes, quantized
        except Exception as error:  # torch.export and ExecuTorch raise a dozen kinds
            raise CompressError(f"{model.name}: ExecuTorch cannot convert it ({first_line(error)})") from error


def _lowered(network: Any, model: TaskModel) -> Any:
    """Return the program of a network, with everything that XNNPACK can run given to it."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    settings = model.encoder.settings
    inputs = distinct_inputs(network.config, settings)
    rows = torch.export.Dim("rows", min=1, max=MOST_ROWS)
    tokens = torch.export.Dim("tokens", min=1, max=max(settings.max_length, TOKENS))
    shapes = (tuple({0: rows, 1: tokens} for _ in inputs),)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own parts; the gate proves the result
        module = Logits(network, settings.inputs).eval()
        exported = torch.export.export(module, tuple(inputs.values()), dynamic_shapes=shapes, strict=False)
        return to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()]).to_executorch()


class _Table(nn.Module):
    """An embedding of 8-bit rows, each with its scale."""

    rows: torch.Tensor
    scale: torch.Tensor

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        rows, scale = quantize_rows(table.weight.detach().numpy())
        self.register_buffer("rows", torch.tensor(rows))
        self.register_buffer("scale", torch.tensor(scale.ravel()).reshape(-1, 1))  # numpy has a stride of 0 there

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows, scale = (nn.functional.embedding(ids, buffer) for buffer in (self.rows, self.scale))
        return rows.to(torch.float32) * scale


def _quantize(network: nn.Module, scheme: Int8) -> dict[str, Any]:
    """Make linear layers and tables of a network 8-bit, in place; return what ``quantize_graph`` does."""
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_
    from torchao.quantization.granularity import PerAxis

    kept = [name for name, module in network.named_modules() if is_excluded(name, scheme.exclude)]
    layers = {name: module for name, module in network.named_modules() if isinstance(module, nn.Linear)}
    chosen = {n for n, layer in layers.items() if n not in kept and min(layer.weight.shape) >= SMALL}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        way = Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int8, weight_granularity=PerAxis(0))
        quantize_(network, way, lambda _, name: name in chosen)
    tables = 0
    for name, module in list(network.named_modules()):
        fits = type(module) in TABLE and min(module.weight.shape) >= SMALL
        if fits and scheme.embeddings and name not in kept:
            parent, _, own = name.rpartition(".")
            setattr(network.get_submodule(parent), own, _Table(module))
            tables += 1
    return {"linear": len(chosen), "tables": tables, "float": sorted(set(layers) - chosen)}
