"""Networks that standard classes cannot hold, on disk: ``structure.json`` beside config and weights.

Their model type in ``config.json`` begins with ``nlp-compress/``, so that standard transformers refuses the folder by
name instead of filling what it does not find with random weights.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from compress.architectures import define
from compress.artifact.structure import Structure, restructured, structure_of, tensors_of
from eval.cost.size import sparse_bytes
from eval.errors import UserError
from eval.files.typed_json import read_values
from teachers.anatomy.families import register_family
from teachers.taskmodel import TaskModel, load_taskmodel

FILE = "structure.json"
WEIGHTS = "model.safetensors"
PREFIX = "nlp-compress/"
"""Stands before the model type of a network that is no longer standard."""
BITS, VALUES = "#bits", "#values"
"""Ends of the two names that a tensor is saved under without its zeros: one bit a number, and those that are not 0."""


def is_restructured(folder: str | Path) -> bool:
    """Whether a folder holds a network that standard classes cannot hold."""
    return (Path(folder) / FILE).is_file()


def writer_for(network: Any) -> Callable[[Any, Path, bool], None] | None:
    """Return what writes a network that is not standard, with or without its weights; None for one that is."""
    structure = structure_of(network)
    return (lambda model, folder, weights: _write(model, structure, folder, weights)) if structure else None


def load_restructured(folder: Path) -> TaskModel:
    """Load what ``writer_for`` wrote.

    Raises:
        UserError: If a file is missing, damaged, or does not fit the others.
    """
    structure = _json(folder / FILE)
    config = _config(folder)

    def read(auto_class: Any, config: Any) -> Any:
        network = restructured(auto_class, config, structure)
        _fill(network, folder / WEIGHTS)
        return network

    return load_taskmodel(folder, config=config, read=read)


def _write(network: Any, structure: Structure, folder: Path, weights: bool) -> None:
    values = json.loads(network.config.to_json_string(use_diff=True))
    values |= {"architectures": [type(network).__name__], "model_type": PREFIX + network.config.model_type}
    (folder / "config.json").write_text(json.dumps(values, indent=2), encoding="utf-8")
    (folder / FILE).write_text(json.dumps(structure, indent=1), encoding="utf-8")
    if weights:
        _write_weights(network, folder)


def _write_weights(network: Any, folder: Path) -> None:
    sparse = _sparse(network)
    tensors: dict[str, Tensor] = {}
    for name, tensor in tensors_of(network).items():
        dense = tensor.detach().cpu().contiguous()
        tensors |= _without_zeros(name, dense, sparse[name]) if name in sparse else {name: dense.clone()}
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})


def _sparse(network: Any) -> dict[str, Any]:
    """Return name -> the module that has this tensor, for those that are saved without zeros."""
    parts = network.named_modules()
    return {f"{path}.{name}": part for path, part in parts for name in getattr(part, "sparse_tensors", ())}


def _without_zeros(name: str, tensor: Tensor, part: Any) -> dict[str, Tensor]:
    packs = hasattr(part, "without_zeros")
    size = part.saved_bytes(name.rpartition(".")[2]) if packs else sparse_bytes(tensor)
    if size == tensor.numel() * tensor.element_size():
        return {name: tensor.clone()}
    if packs:
        kept, values = part.without_zeros()
        return {name + BITS: packed_bits(kept.cpu()), name + VALUES: values.cpu()}
    flat = tensor.reshape(-1)
    kept = (flat != 0) | flat.signbit()  # -0.0 is kept, so that every bit comes back
    return {name + BITS: packed_bits(kept), name + VALUES: flat[kept]}


def packed_bits(flags: Tensor) -> Tensor:
    """Return booleans ``[n]`` as ``[ceil(n / 8)]`` bytes, the first one in the lowest bit."""
    padded = torch.cat([flags, flags.new_zeros(-len(flags) % 8)]).reshape(-1, 8)
    return (padded.to(torch.uint8) << torch.arange(8, dtype=torch.uint8)).sum(dim=1, dtype=torch.uint8)


def unpacked_bits(packed: Tensor, count: int) -> Tensor:
    """Return the first ``count`` booleans that ``packed_bits`` packed."""
    return ((packed[:, None] >> torch.arange(8, dtype=torch.uint8)) & 1).reshape(-1)[:count].bool()


def _fill(network: Any, file: Path) -> None:
    from teachers.anatomy.forms.xlnet_form import in_linear_state

    try:
        saved = in_linear_state(network, load_file(file)) if network.config.model_type == "xlnet" else load_file(file)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{file}: the weights cannot be read ({error})") from error
    wanted = tensors_of(network)
    given = {name.removesuffix(BITS).removesuffix(VALUES) for name in saved}
    if missing := sorted(wanted.keys() ^ given):
        raise UserError(f"{file}: does not hold the tensors of {FILE} ({', '.join(missing[:3])})")
    sparse = _sparse(network)
    with torch.no_grad():
        for name, tensor in sorted(wanted.items(), key=lambda item: item[0] not in saved):  # zero points before codes
            if name in saved:
                found = saved[name]
                if found.shape != tensor.shape or found.dtype != tensor.dtype:
                    raise UserError(f"{file}: {name} is {tuple(found.shape)}, {FILE} says {tuple(tensor.shape)}")
                tensor.copy_(found)
                continue
            try:
                _with_zeros(saved, name, tensor, sparse[name])
            except (KeyError, ValueError, RuntimeError, IndexError) as error:
                raise UserError(f"{file}: {name}, which is saved without its zeros, does not fit: {error}") from error


def _with_zeros(saved: dict[str, Tensor], name: str, tensor: Tensor, part: Any) -> None:
    bits, values = saved[name + BITS], saved[name + VALUES]
    packs = hasattr(part, "with_zeros")
    kept = unpacked_bits(bits, part.weight_count()[0] if packs else tensor.numel())
    if packs:
        part.with_zeros(kept, values)
        return
    if int(kept.sum()) != len(values) or values.dtype != tensor.dtype:
        raise ValueError(f"it has {len(values)} values for {int(kept.sum())} places")
    tensor.copy_(torch.zeros(tensor.numel(), dtype=tensor.dtype).masked_scatter_(kept, values).reshape(tensor.shape))


def _config(folder: Path) -> Any:
    from transformers import AutoConfig

    file = folder / "config.json"
    values = _json(file)
    kind = str(values.pop("model_type", ""))
    if not kind.startswith(PREFIX):
        raise UserError(f"{file}: model type {kind!r} does not fit {FILE}, which belongs to a {PREFIX}… model")
    define(kind.removeprefix(PREFIX))
    register_family({"model_type": kind.removeprefix(PREFIX)})
    try:
        return AutoConfig.for_model(kind.removeprefix(PREFIX), **values)
    except (ValueError, TypeError) as error:
        raise UserError(f"{file}: the configuration cannot be read ({error})") from error


def _json(file: Path) -> dict[str, Any]:
    values = read_values(file, "copy the model folder anew")
    if not isinstance(values, dict):
        raise UserError(f"{file}: must be a JSON object")
    return values
