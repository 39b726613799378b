"""From a torch model to a float32 ONNX graph; the one place that knows torch's exporters."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import torch

from compress.export.graph import Model, tidy
from eval.encoding import EncoderSettings
from eval.errors import CompressError
from teachers.taskmodel import TaskModel

OPSET = 17
"""LayerNormalization is one operator from here on; every runtime of the last years knows it."""
OLDEST_OPSET_OF_DYNAMO = 18
ROWS, TOKENS = 2, 11
"""Shape of the traced input; both are dynamic in the graph."""
KNOWN_WARNINGS = (
    (DeprecationWarning, "You are using the legacy TorchScript-based ONNX export"),
    (DeprecationWarning, "The feature will be removed"),
    (torch.jit.TracerWarning, ""),  # type: ignore[attr-defined]
    (UserWarning, "Exporting aten::index operator of advanced indexing"),
    (UserWarning, "Constant folding - Only steps=1"),
    (UserWarning, "To copy construct from a tensor, it is recommended"),
    (UserWarning, "# The axis name: .* will not be used"),
    (FutureWarning, "`isinstance.treespec, LeafSpec.` is deprecated"),
)
"""What the exporters say of every encoder; the gate proves what they doubt."""


def trace(model: TaskModel, opset: int = OPSET) -> tuple[Model, str]:
    """Export a model with dynamic batch and length.

    Torch's tracer comes first: it exports every family, in a second. Where it fails, or once torch has dropped it,
    ``torch.export`` takes over.

    Args:
        model: What is exported; it is left as it was.
        opset: Version of the ONNX operators; the second exporter starts at 18.

    Returns:
        A tidy graph whose inputs are ``encoder.settings.inputs`` and whose outputs are ``logits``, or
        ``start_logits`` and ``end_logits``; and which exporter wrote it: ``tracer`` or ``dynamo``.

    Raises:
        CompressError: If neither can.
    """
    settings = model.encoder.settings
    failures = []
    with _ready(model.model) as network:
        inputs = _distinct_inputs(network.config, settings)
        wrapper = _Logits(network, settings.inputs).eval()
        for name, export in EXPORTERS.items():
            try:
                with _quiet():
                    graph = export(wrapper, inputs, settings, opset)
            except Exception as error:  # exporters raise a dozen kinds
                failures.append(f"{name}: {(str(error).strip().splitlines() or [type(error).__name__])[0][:300]}")
                continue
            if [value.name for value in graph.graph.input] != list(settings.inputs):
                failures.append(f"{name}: inputs are {[value.name for value in graph.graph.input]}")
                continue
            tidy(graph)
            return graph, name
    raise CompressError(f"{model.name}: cannot be exported to ONNX ({'; '.join(failures)})")


class _Logits(torch.nn.Module):
    """Positional tensors in, logits out."""

    def __init__(self, model: Any, inputs: tuple[str, ...]) -> None:
        super().__init__()
        self.model = model
        self.inputs = inputs

    def forward(self, *tensors: torch.Tensor) -> Any:
        outputs = self.model(**dict(zip(self.inputs, tensors, strict=True)))
        if "start_logits" in outputs:
            return outputs["start_logits"], outputs["end_logits"]
        return outputs["logits"]


@contextlib.contextmanager
def _ready(network: Any) -> Iterator[Any]:
    """Lend the network in float32 on the CPU, without dropout, its attention written out in plain products."""
    if any(p.dtype != torch.float32 or p.device.type != "cpu" for p in network.parameters() if p.is_floating_point()):
        network = copy.deepcopy(network).to("cpu", torch.float32)
    training, attention = network.training, network.config._attn_implementation
    network.eval()
    if attention != "eager":
        network.set_attn_implementation("eager")
    try:
        yield network
    finally:
        network.train(training)
        if attention != "eager":
            network.set_attn_implementation(attention)


def _distinct_inputs(config: Any, settings: EncoderSettings) -> tuple[torch.Tensor, ...]:
    """Return random inputs no two of which are alike: an exporter may take equal ones for the same."""
    chance = torch.Generator().manual_seed(0)
    types = max(1, int(getattr(config, "type_vocab_size", 2) or 1))
    mask = torch.ones(ROWS, TOKENS, dtype=torch.long)
    mask[1, slice(0, 4) if settings.pad_side == "left" else slice(TOKENS - 4, TOKENS)] = 0
    made = {
        "input_ids": torch.randint(0, config.vocab_size, (ROWS, TOKENS), generator=chance),
        "attention_mask": mask,
        "token_type_ids": torch.randint(0, min(types, 2), (ROWS, TOKENS), generator=chance),
    }
    return tuple(made[name] for name in settings.inputs)


def _output_names(settings: EncoderSettings) -> list[str]:
    return ["start_logits", "end_logits"] if settings.kind == "qa" else ["logits"]


def _by_tracer(wrapper: _Logits, inputs: tuple[torch.Tensor, ...], settings: EncoderSettings, opset: int) -> Model:
    by_token = settings.kind in ("qa", "tagging", "masked-lm")
    names = _output_names(settings)
    axes: dict[str, dict[int, str]] = {name: {0: "batch", 1: "length"} for name in settings.inputs}
    axes |= {name: {0: "batch"} | ({1: "length"} if by_token else {}) for name in names}
    stream = io.BytesIO()
    torch.onnx.export(
        wrapper,
        inputs,
        stream,  # type: ignore[arg-type]
        input_names=list(settings.inputs),
        output_names=names,
        dynamic_axes=axes,
        opset_version=opset,
        dynamo=False,
    )
    return onnx.load_from_string(stream.getvalue())


def _by_dynamo(wrapper: _Logits, inputs: tuple[torch.Tensor, ...], settings: EncoderSettings, opset: int) -> Model:
    dynamic = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        torch.onnx.export(
            wrapper,
            inputs,
            str(file),
            input_names=list(settings.inputs),
            output_names=_output_names(settings),
            dynamic_shapes=(tuple(dynamic for _ in inputs),),
            opset_version=max(opset, OLDEST_OPSET_OF_DYNAMO),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
        return onnx.load(str(file))


Exporter = Callable[[_Logits, tuple[torch.Tensor, ...], EncoderSettings, int], Model]
EXPORTERS: dict[str, Exporter] = {"tracer": _by_tracer, "dynamo": _by_dynamo}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence what the exporters say of every model."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            for category, message in KNOWN_WARNINGS:
                warnings.filterwarnings("ignore", message, category)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
