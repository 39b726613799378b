"""From a torch model to a float32 ONNX graph; the one place that knows torch's exporters."""

from __future__ import annotations

import contextlib
import copy
import io
import itertools
import logging
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import onnx
import torch

from compress.architectures.wrapped_encoder import added
from compress.onnx_graph.rewrites import Model, tidy
from compress.onnx_graph.static_shapes import set_reach, settle_shapes
from eval.encoding import EncoderSettings
from eval.errors import CompressError
from eval.kinds.kind_registry import kind_of
from eval.one_line import first_line
from teachers.anatomy.attention_heads import eager_attention
from teachers.anatomy.encoder import base_encoder, family_of, inner_family, reaches
from teachers.anatomy.head_bias import buckets_from_table
from teachers.taskmodel import TaskModel, logits_of

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
    (UserWarning, "Exporting a model to ONNX with a batch_size other than 1, with a variable length with LSTM"),
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
        A tidy graph whose inputs are ``encoder.settings.inputs`` and whose outputs are ``logits``, ``start_logits``
        and ``end_logits`` (qa), or ``vectors`` and, where they are means of it, ``last_hidden_state`` (embedding); and
        which exporter wrote it: ``tracer`` or ``dynamo``.

    Raises:
        CompressError: If neither can.
    """
    settings = model.encoder.settings
    kind = kind_of(settings.kind)
    outputs = dict.fromkeys(kind.graph_outputs, AXES if kind.per_token else AXES[:1])
    with ready(model.model) as network, mask_of_one_row(network):
        inputs = distinct_inputs(network.config, settings)
        module = Logits(network, settings.inputs, states=model.task.pooling == "mean")
        with torch.no_grad():
            if kind.vectors and isinstance(module(*inputs.values()), tuple):
                outputs[STATES] = AXES
        graph, exporter = traced(module, inputs, outputs, opset, model.name)
        name_by_network(graph, network)
        return graph, exporter


def traced(
    module: torch.nn.Module,
    inputs: Inputs,
    outputs: Outputs,
    opset: int,
    name: str,
    axes: Outputs = MappingProxyType({}),
) -> tuple[Model, str]:
    """Export a module that takes and returns tensors by place, with the first exporter that can.

    Args:
        module: What is exported; names in the graph are those of its attribute ``model``.
        inputs: Tensors to trace with, by name; their first two axes are dynamic.
        outputs: Dynamic axes of each result.
        opset: Version of the ONNX operators.
        name: What messages call it.
        axes: Names of the dynamic axes of inputs, where they are not ``AXES``.

    Returns:
        A tidy graph with these inputs and outputs, and the name of the exporter.

    Raises:
        CompressError: If none can.
    """
    failures = []
    for exporter, export in EXPORTERS.items():
        try:
            with _quiet():
                graph = export(module.eval(), inputs, outputs, opset, axes)
        except Exception as error:  # exporters raise a dozen kinds
            failures.append(f"{exporter}: {first_line(error)}")
            continue
        if [value.name for value in graph.graph.input] != list(inputs):
            failures.append(f"{exporter}: inputs are {[value.name for value in graph.graph.input]}")
            continue
        tidy(graph)
        set_reach(graph, max(reaches(module), default=0))
        settle_shapes(graph, {key: tensor.numpy() for key, tensor in inputs.items()})
        return graph, exporter
    raise CompressError(f"{name}: cannot be exported to ONNX ({'; '.join(failures)})")


def name_by_network(graph: Model, network: Any) -> None:
    """Let the names of nodes, in place, begin at the network, where only parts of the one inside of it were called.

    What runs again gets names that end in _1, _2 and so on.

    Args:
        graph: What was traced.
        network: The network; one without another one inside calls all of its parts itself.
    """
    inner = getattr(network, "inner", None)
    if inner is None:
        return
    modules = {name for name, _ in network.named_modules(remove_duplicate=False)}  # shared ones by each name
    words = f"inner.{family_of(inner).base}.{family_of(inner).layers}".split(".")
    roots = ["", *(".".join(words[:length]) + "." for length in range(len(words), 0, -1))]
    taken: set[str] = set()
    for node in graph.graph.node:
        module, _, operator = node.name.rpartition("/")
        said = dict.fromkeys((module, re.sub(r"_\d+$", "", module)))
        whole = next((name for one in said for root in roots if (name := root + one) in modules), module)
        runs = (f"{whole}_{run}/{operator}" if run else f"{whole}/{operator}" for run in itertools.count())
        node.name = next(name for name in runs if name not in taken)
        taken.add(node.name)


class Logits(torch.nn.Module):
    """Positional tensors in, logits out; with ``states`` an embedding's last hidden states too."""

    def __init__(self, model: Any, inputs: tuple[str, ...], states: bool = False) -> None:
        super().__init__()
        self.model = model
        self.inputs = inputs
        self.states = states

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Return logits, start and end logits, or vectors, for inputs in the order of their names."""
        outputs = self.model(**dict(zip(self.inputs, tensors, strict=True)))
        if "start_logits" in outputs:
            return outputs["start_logits"], outputs["end_logits"]
        logits = logits_of(outputs, self.model.config, tensors[self.inputs.index("attention_mask")])
        return (logits, outputs[STATES]) if self.states and "logits" not in outputs else logits


@contextlib.contextmanager
def ready(network: Any) -> Iterator[Any]:
    """Lend the network in float32 on the CPU, without dropout, its attention written out in plain operators."""
    if any(p.dtype != torch.float32 or p.device.type != "cpu" for p in network.parameters() if p.is_floating_point()):
        network = copy.deepcopy(network).to("cpu", torch.float32)
    training = network.training
    network.eval()
    try:
        with eager_attention(network), buckets_from_table(network):
            yield network
    finally:
        network.train(training)


@contextlib.contextmanager
def mask_of_one_row(network: Any) -> Iterator[None]:
    """Give an encoder the mask that is added to attention scores, one row for each text, while it is traced.

    A family's own way from ``attention_mask`` to it has dozens of operators, which a small model notices at a batch of
    one, and ends in a row for every token. Families that take no such mask go their own way.
    """
    family = inner_family(network)
    if family.layers is None or not family.adds_mask:
        yield
        return

    def ready_made(_module: Any, args: Any, inputs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        mask = inputs.get("attention_mask")
        if mask is None or mask.ndim != 2:
            return args, inputs
        return args, {**inputs, "attention_mask": added(mask, torch.float32)[:, None]}

    hook = base_encoder(network).register_forward_pre_hook(ready_made, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


def distinct_inputs(config: Any, settings: EncoderSettings) -> dict[str, torch.Tensor]:
    """Return random inputs no two of which are alike: an exporter may take equal ones for the same."""
    chance = torch.Generator().manual_seed(0)
    types = max(1, int(getattr(config, "type_vocab_size", 2) or 1))
    mask = torch.ones(ROWS, TOKENS, dtype=torch.long)
    mask[1, slice(0, 4) if settings.pad_side == "left" else slice(TOKENS - 4, TOKENS)] = 0
    made = {
        "input_ids": torch.randint(0, config.vocab_size, (ROWS, TOKENS), generator=chance),
        "attention_mask": mask,
        "token_type_ids": torch.randint(0, min(types, 2), (ROWS, TOKENS), generator=chance),
        "branch_ids": torch.tensor([[0] * 7 + [1, 1, 2, 3]] * ROWS),
        "mention_ids": torch.tensor([[0, 1, 1, 0, 0, 2, 0, 1, 1, 1, 2]] * ROWS),
    }
    return {name: made[name] for name in settings.inputs}


STATES = "last_hidden_state"
"""An output of embeddings that the answer does not need: tools such as optimum pool it themselves."""
AXES = ("batch", "length")
"""Names of the dynamic axes."""
Inputs = Mapping[str, torch.Tensor]
Outputs = Mapping[str, tuple[str, ...]]


def _by_tracer(module: torch.nn.Module, inputs: Inputs, outputs: Outputs, opset: int, axes: Outputs) -> Model:
    stream = io.BytesIO()
    torch.onnx.export(
        module,
        tuple(inputs.values()),
        stream,  # type: ignore[arg-type]
        input_names=list(inputs),
        output_names=list(outputs),
        dynamic_axes={name: dict(enumerate({**axes, **outputs}.get(name, AXES))) for name in (*inputs, *outputs)},
        opset_version=opset,
        dynamo=False,
    )
    return onnx.load_from_string(stream.getvalue())


def _by_dynamo(module: torch.nn.Module, inputs: Inputs, outputs: Outputs, opset: int, axes: Outputs) -> Model:
    del axes
    dynamic = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        torch.onnx.export(
            module,
            tuple(inputs.values()),
            str(file),
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_shapes=(tuple(dynamic for _ in inputs),),
            opset_version=max(opset, OLDEST_OPSET_OF_DYNAMO),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
        return onnx.load(str(file))


Exporter = Callable[[torch.nn.Module, Inputs, Outputs, int, Outputs], Model]
EXPORTERS: dict[str, Exporter] = {"tracer": _by_tracer, "dynamo": _by_dynamo}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence what the exporters say of every model, and keep what the tracer says of a failure off standard output."""
    with contextlib.suppress(AttributeError):  # gone with the tracer, some day
        torch._C._jit_set_onnx_log_output_stream("stderr")
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
