"""Several tasks over one base as one graph: the base's weights once, and beside them what each task has of its own."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPooling

from compress.modules.int8_scheme import Int8
from compress.modules.stacked import OWN, Asked, stacked
from compress.onnx_graph.build import OnnxGraph
from compress.onnx_graph.int8_graph import quantize_graph
from compress.onnx_graph.merged_products import merge_products
from compress.onnx_graph.one_token import every_token, narrow_to_one_token
from compress.onnx_graph.tracing import AXES, OPSET, ROWS, TOKENS, distinct_inputs, mask_of_one_row, ready, traced
from eval.encoding import TASK_IDS
from eval.errors import UserError
from teachers.anatomy.encoder import base_encoder, family_of
from teachers.anatomy.pooler import pooler_output
from teachers.taskmodel import TaskModel, logits_of


class TasksOverOneBase(nn.Module):
    """The encoder of a base with the adapters of several tasks, and their heads.

    Args:
        models: A model a task, all over one base, with their adapters not merged; they are left as they are.

    Raises:
        UserError: If they are not over one base.
    """

    def __init__(self, models: Mapping[str, TaskModel]) -> None:
        super().__init__()
        first = next(iter(models.values()))
        self.inputs = (*first.encoder.settings.inputs, TASK_IDS)
        self.asked = Asked()
        networks = [model.model for model in models.values()]
        encoders = [base_encoder(network) for network in networks]
        self.model = _stacked_encoder(dict(zip(models, encoders, strict=True)), self.asked)
        pairs = [(network, encoder) for network, encoder in zip(networks, encoders, strict=True)]
        self.heads = nn.ModuleList(nn.Identity() if net is encoder else _head(net, encoder) for net, encoder in pairs)
        self.configs = [network.config for network in networks]

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return what each task answers for every row: logits ``[B, C]`` or ``[B, L, C]``, or vectors ``[B, d]``.

        Args:
            tensors: The inputs of the encoder, and the rows' tasks.
        """
        inputs = dict(zip(self.inputs, tensors, strict=True))
        self.asked.rows = inputs.pop(TASK_IDS)[:, 0]
        states = self.model(**inputs).last_hidden_state
        found = []
        for head, config in zip(self.heads, self.configs, strict=True):
            outputs: Any = BaseModelOutput(last_hidden_state=states)
            if not isinstance(head, nn.Identity):
                getattr(head, family_of(head).base).states = states
                outputs = head(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
            found.append(logits_of(outputs, config, inputs["attention_mask"]))
        return tuple(found)


class _Given(nn.Module):
    """Stands in the place of an encoder below a head: gives the states that it was told, and the task's own pooler."""

    states: Tensor

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.pooler = getattr(encoder, "pooler", None)
        self.pooler_activation = getattr(encoder, "pooler_activation", None)

    def forward(self, *_: Any, **__: Any) -> Any:
        return BaseModelOutputWithPooling(self.states, pooler_output(self, self.states))


def _head(network: Any, encoder: Any) -> Any:
    """Return a network without its encoder; the head is the network's own."""
    found = copy.copy(network)
    found._modules = {**network._modules, family_of(network).base: _Given(encoder)}
    return found


def _stacked_encoder(encoders: Mapping[str, Any], asked: Asked) -> Any:
    """Return a copy of the first encoder, in which what the tasks have of their own is there for each of them.

    Raises:
        UserError: If they differ in anything else.
    """
    names, held = list(encoders), list(encoders.values())
    parts = [dict(encoder.named_modules()) for encoder in held]
    common = [path for path in parts[0] if all(path in others for others in parts)]
    places = {path: layer for path in common if (layer := stacked([own[path] for own in parts], asked)) is not None}
    first = _base_weights(held[0])
    for name, encoder in zip(names[1:], held[1:], strict=True):
        own = _base_weights(encoder)
        known = {path.rpartition(".")[0] for path in first if first[path] is not own.get(path)}
        unlike = [path for path in first if path not in own or not torch.equal(first[path], own[path])]
        unlike = [path for path in unlike if path.rpartition(".")[0] in known and path.rpartition(".")[0] not in places]
        if unlike or first.keys() != own.keys():
            where = (unlike or sorted(first.keys() ^ own.keys()))[0]
            raise UserError(
                f"{name}: is not over the same base as {names[0]}: {where} differs, which no adapter changes"
            )
    made = copy.deepcopy(held[0])
    for path, layer in places.items():
        made.set_submodule(path, layer)
    if getattr(made, "pooler", None) is not None:
        made.pooler = None
    return made


def _base_weights(encoder: Any) -> dict[str, Tensor]:
    """Return the weights that an encoder has of its base, by their names there."""
    names = {name.replace(".base_layer.", "."): p for name, p in encoder.named_parameters()}
    own = ("pooler.", ".lora_A.", ".lora_B.", ".adapter.")
    return {
        name: p for name, p in names.items() if not any(part in f".{name}" or name.startswith(part) for part in own)
    }


def several_tasks_graph(models: Mapping[str, TaskModel], scheme: Int8 | None) -> OnnxGraph:
    """Return models over one base as one checked ONNX graph with an output a task, named as the task.

    Its further input ``task_ids``, int64 ``[B, L]`` as token types are, is the number of the row's task at each of its
    tokens. Every output has a row for each input row; only those count whose ``task_ids`` ask that task.

    Args:
        models: As ``TasksOverOneBase`` takes them.
        scheme: How it becomes 8-bit, without static ranges; None keeps float32. What tasks have of their own stays
            in float32.

    Raises:
        UserError: If they are not over one base.
        CompressError: If no exporter can.
    """
    first, module = next(iter(models.values())), TasksOverOneBase(models).eval()
    with ready(module.model) as encoder, mask_of_one_row(encoder):
        module.model = encoder
        inputs = distinct_inputs(encoder.config, first.encoder.settings)
        inputs |= {TASK_IDS: torch.arange(ROWS)[:, None].expand(ROWS, TOKENS).clone() % len(models)}
        with torch.no_grad():
            module(*inputs.values())  # whatever is wrong with it is said here, and not by an exporter
        outputs = {name: AXES if model.task.per_token else AXES[:1] for name, model in models.items()}
        graph, exporter = traced(module, inputs, outputs, OPSET, ", ".join(models))
    one_token = narrow_to_one_token(graph)
    quantized = None
    float_bytes = int(graph.ByteSize())
    if scheme is not None:
        quantized = quantize_graph(graph, scheme.model_copy(update={"exclude": (*scheme.exclude, OWN)}))
    merge_products(graph)
    onnx.checker.check_model(graph)
    opset = max(entry.version for entry in graph.opset_import if entry.domain in ("", "ai.onnx"))
    return OnnxGraph(graph, (graph,), exporter, float_bytes, opset, quantized, one_token, _why(models, one_token))


def _why(models: Mapping[str, TaskModel], one_token: Sequence[str]) -> str:
    """Return why the last layer is computed for all tokens, if it is; a task that reads all of them is asked first."""
    reasons = [every_token(model, one_token) for model in sorted(models.values(), key=lambda m: not m.task.per_token)]
    return next(filter(None, reasons), "")
