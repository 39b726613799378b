"""What one task adds to a base, as a small folder: the adapter's matrices and the head.

LoRA is written as PEFT writes it (``adapter_config.json``, ``adapter_model.safetensors``), so
``PeftModel.from_pretrained(base, folder)`` loads it; of bottlenecks, which PEFT does not have, the file of tensors has
the network's own names. ``adapter.json`` says which base they belong to.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from eval.errors import UserError
from eval.files.typed_json import read_typed
from eval.task import TaskSpec
from teachers.adapters.adapted_weights import write_adapted
from teachers.adapters.adapter_block import AdapterBlock, Lora
from teachers.adapters.installing import install, lora_config, merge, task_parameters
from teachers.anatomy.encoder import base_encoder
from teachers.taskmodel import TaskModel, load_taskmodel, save_taskmodel, weights_digest

FOLDER = "adapter"
"""Name of such a folder within that of its teacher."""
SETTINGS, WEIGHTS = "adapter.json", "adapter_model.safetensors"
PEFT = "base_model.model."
"""What PEFT puts before a network's own names."""
VERSION = 2
"""Raised when the same base, data and settings give another adapter."""
ANEW = "train the adapter anew"


class Settings(BaseModel):
    """What ``adapter.json`` holds.

    Attributes:
        format: Version of the folder.
        adapter: Which adapter it is.
        task: The task as the teacher answers it, its thresholds included.
        base: Digest of the base's encoder.
        weights: Digest of the tensors.
    """

    format: Literal[1] = 1
    adapter: AdapterBlock
    task: TaskSpec
    base: str
    weights: str


def base_digest(network: Any) -> str:
    """Return the digest of what a network with an adapter has of its base: the encoder's weights without a pooler."""
    encoder, own = base_encoder(network), {id(parameter) for parameter in task_parameters(network).values()}
    kept = {name.replace(".base_layer.", "."): p for name, p in encoder.named_parameters() if id(p) not in own}
    return weights_digest({name: p for name, p in kept.items() if not name.startswith("pooler.")})


def save_adapted(model: TaskModel, block: AdapterBlock, folder: Path) -> None:
    """Write the adapter of a teacher, and the teacher with it, merged in place into its weights if it can be.

    Args:
        model: Its network has the adapter.
        block: Which adapter it is.
        folder: Where to; it must exist.
    """
    save_adapter(model.model, block, model.task, folder / FOLDER)
    whole = merge(model.model)
    save_taskmodel(model, folder, None if whole else lambda network, place, _: write_adapted(network, block, place))


def save_adapter(network: Any, block: AdapterBlock, task: TaskSpec, folder: Path) -> None:
    """Write the adapter and the head of a network into a new folder.

    Args:
        network: With the adapter, which is not merged yet.
        block: Which adapter it is.
        task: What it answers.
        folder: Where to.
    """
    folder.mkdir()
    base = base_digest(network)
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in task_parameters(network).items()}
    if isinstance(block.adapter, Lora):
        tensors = {_of_peft(name): tensor for name, tensor in tensors.items()}
        network.peft_config["default"].modules_to_save = lora_config(network, block.adapter).modules_to_save
        network.peft_config["default"].save_pretrained(folder)
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    settings = Settings(adapter=block, task=task, base=base, weights=weights_digest(tensors))
    (folder / SETTINGS).write_text(settings.model_dump_json(indent=1, exclude_unset=True) + "\n", encoding="utf-8")


def read_settings(folder: Path) -> Settings:
    """Return what the folder of an adapter says.

    Args:
        folder: An adapter's, or that of its teacher.

    Raises:
        UserError: If it is no such folder, or damaged.
    """
    place = adapter_place(folder)
    found: Settings = read_typed(place / SETTINGS, Settings, ANEW)
    return found


def adapter_place(folder: Path) -> Path:
    """Return the folder of an adapter, given it or that of its teacher.

    Raises:
        UserError: If there is none.
    """
    place = next((one for one in (folder, folder / FOLDER) if (one / SETTINGS).is_file()), None)
    if place is None:
        raise UserError(
            f"{folder}: holds no adapter; give the folder of a teacher that 'compress teach' fine-tuned with an adapter"
        )
    return place


def with_adapter(base: str | Path, folder: Path) -> TaskModel:
    """Return a base with an adapter and its head, not merged.

    Args:
        base: The folder or hub name of the base.
        folder: The adapter, or its teacher.

    Raises:
        UserError: If the adapter is missing, damaged, or belongs to another base.
    """
    settings, place = read_settings(folder), adapter_place(folder)
    model = load_taskmodel(base, settings.task)
    install(model.model, settings.adapter.adapter)
    if base_digest(model.model) != settings.base:
        raise UserError(
            f"{folder}: its adapter was trained on another base than {base} (encoder {settings.base[:12]}, this one "
            f"{base_digest(model.model)[:12]}); give the base that it was trained on"
        )
    model.model.requires_grad_(True)
    _fill(model.model, settings, place / WEIGHTS)
    return replace(model, task=settings.task, name=folder.name)


def _fill(network: Any, settings: Settings, file: Path) -> None:
    try:
        tensors = load_file(file)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{file}: cannot be read ({error}); {ANEW}") from error
    if weights_digest(tensors) != settings.weights:
        raise UserError(f"{file}: was changed after it was written; copy the folder again, or {ANEW}")
    wanted = task_parameters(network)
    lora = isinstance(settings.adapter.adapter, Lora)
    names = {_of_peft(name) if lora else name: name for name in wanted}
    if names.keys() != tensors.keys() or any(wanted[own].shape != tensors[name].shape for name, own in names.items()):
        raise UserError(f"{file}: does not hold the tensors that {SETTINGS} describes; {ANEW}")
    with torch.no_grad():
        for name, own in names.items():
            wanted[own].copy_(tensors[name])


def _of_peft(name: str) -> str:
    """Return the name under which PEFT saves a tensor of an adapter or a head."""
    return f"{PEFT}{name.replace('.default.', '.')}"
