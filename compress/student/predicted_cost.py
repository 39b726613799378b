"""How big and how costly a model is: one that is there, or one of a config, for which no weight is allocated."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eval.cost.size import MACS_LENGTH, macs

if TYPE_CHECKING:
    from eval.task import TaskSpec

_TYPE_NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64", "int64": "I64"}


@dataclass(frozen=True)
class Cost:
    """What a model costs.

    Attributes:
        parameters: Weights, shared ones counted once.
        bytes: Size of the ``model.safetensors`` that will be written.
        macs: Multiply-accumulates of one input of ``length`` tokens.
        length: Tokens of that input.
    """

    parameters: int
    bytes: int
    macs: int
    length: int


@dataclass(frozen=True)
class Prediction:
    """The cost of a student beside that of its teacher."""

    student: Cost
    teacher: Cost


def predicted_cost(config: Any, task: TaskSpec) -> Cost:
    """Return the exact cost of the model that ``config`` describes, with the head for ``task``.

    Args:
        config: A transformers config of a supported family; it is not changed.
        task: Decides the head.
    """
    import torch

    from teachers.anatomy.axes import on_meta
    from teachers.taskmodel import auto_class, quiet, set_task

    config = copy.deepcopy(config)
    set_task(config, task)
    with quiet():
        model = on_meta(lambda: auto_class(task).from_config(config))
    length = _length(config)
    model.config.pad_token_id = None  # DeBERTa would look for padding among the values of the input, which has none
    with torch.device("meta"):  # for the tensors that a forward pass makes
        return _cost(model, length)


def cost_of(model: Any) -> Cost:
    """Return the exact cost of a network, which runs once."""
    return _cost(model, _length(model.config))


def _length(config: Any) -> int:
    from teachers.anatomy.encoder import max_tokens

    return min(MACS_LENGTH, max_tokens(config))


def _cost(model: Any, length: int) -> Cost:
    return Cost(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        bytes=safetensors_bytes(model),
        macs=macs(model, length=length),
        length=length,
    )


def safetensors_bytes(model: Any) -> int:
    """Return the size of the file that ``save_pretrained`` writes for a model.

    A safetensors file is 8 bytes for the length of the header, the header as JSON, filled up with spaces to a multiple
    of 8, and the tensors one after the other. Tensors with shared weights are written once.
    """
    from teachers.anatomy.forms.linear_form import recorded_state

    stored = dict(model.named_parameters())
    stored |= {name: buffer for name, buffer in model.named_buffers() if name in model.state_dict()}
    stored = dict(recorded_state(model, stored))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in sorted(stored.items(), key=lambda item: (-item[1].element_size(), item[0])):
        end = offset + tensor.numel() * tensor.element_size()
        kind = _TYPE_NAMES[str(tensor.dtype).removeprefix("torch.")]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    length = len(json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode())
    return 8 + 8 * math.ceil(length / 8) + offset
