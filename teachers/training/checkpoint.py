"""The whole state of a training in one file, without pickle: weights, moments, random state, position."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from eval.errors import UserError
from eval.files.writing import atomic_file

FILE = "checkpoint.safetensors"
BEST = "best.safetensors"
SHARE = 0.05
"""Most of the time that checkpoints may take, however short epochs are and however long writing takes."""


class CheckpointPace:
    """When a training writes its next checkpoint: at the end of an epoch, or when so many seconds have passed.

    Both wait while checkpoints would take more than ``SHARE`` of the time, as far as the last one tells.

    Args:
        every_seconds: Longest time between two checkpoints; 0 writes one after every step, whatever that costs.
        now: The time at which the training begins, in seconds.
    """

    def __init__(self, every_seconds: float, now: float) -> None:
        self.every, self.last, self.cost = every_seconds, now, 0.0

    def is_due(self, now: float, end_of_epoch: bool) -> bool:
        """Whether a checkpoint is to be written at this time."""
        enough = self.cost / SHARE
        wait = enough if end_of_epoch else max(self.every, enough)
        return now >= self.last + (wait if self.every else 0.0)

    def written(self, began: float, ended: float) -> None:
        """Take note of when the last one was written."""
        self.last, self.cost = ended, ended - began


def weights(*modules: nn.Module) -> dict[str, Tensor]:
    """Return every parameter and buffer once, under a name that is unique over the modules; shared ones once."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for number, module in enumerate(modules):
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if id(tensor) not in seen:
                seen.add(id(tensor))
                found[f"{number}.{name}"] = tensor
    return found


def save_weights(path: Path, *modules: nn.Module) -> None:
    """Write the weights of the modules; beside, then renamed."""
    tensors = {name: tensor.detach().cpu().clone() for name, tensor in weights(*modules).items()}
    _write(path, tensors, {})


def load_weights(path: Path, *modules: nn.Module) -> None:
    """Copy weights from ``save_weights`` back into the modules."""
    tensors = read_weights(path)
    with torch.no_grad():
        for name, tensor in weights(*modules).items():
            tensor.copy_(tensors[name])


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return what ``save_weights`` wrote, by the names of ``weights``."""
    return _read(path)[0]


def random_states() -> dict[str, Tensor]:
    """Return the states of torch's own sources of chance in this process, each ``[bytes]``."""
    found = {"cpu": torch.get_rng_state()}
    return found | ({"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {})


def set_random_states(states: Mapping[str, Tensor]) -> None:
    """Put back what ``random_states`` returned, as far as this machine has such a source."""
    for name, put in (("cpu", torch.set_rng_state), ("cuda", torch.cuda.set_rng_state)):
        if name in states and (name == "cpu" or torch.cuda.is_available()):
            put(states[name].clone())  # torch reads a view from a wrong place


def save_checkpoint(
    folder: Path,
    modules: tuple[nn.Module, ...],
    optimizer: torch.optim.Optimizer,
    state: dict[str, Any],
    random: dict[str, Tensor],
) -> None:
    """Write all that a training needs to go on as if it had not been stopped.

    Args:
        folder: Where ``checkpoint.safetensors`` is written, beside and then renamed.
        modules: What is trained.
        optimizer: Its moments are saved by the number of the parameter.
        state: Position and history, as plain JSON.
        random: ``random_states`` of all processes that train together, each ``[processes, bytes]``.
    """
    tensors = {f"weights.{name}": tensor.detach().cpu().clone() for name, tensor in weights(*modules).items()}
    for index, values in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{key}": value.detach().cpu().clone() for key, value in values.items()}
    tensors |= {f"random.{name}": states.cpu() for name, states in random.items()}
    _write(folder / FILE, tensors, state)


def load_checkpoint(
    folder: Path, modules: tuple[nn.Module, ...], optimizer: torch.optim.Optimizer, process: int = 0
) -> dict[str, Any]:
    """Put weights, moments and this process's random state back and return the position.

    With as many processes as there were, a training goes on exactly; with others, chance differs.

    Raises:
        UserError: If the file is damaged or belongs to another model.
    """
    tensors, state = _read(folder / FILE)
    own = weights(*modules)
    saved = {name.removeprefix("weights."): value for name, value in tensors.items() if name.startswith("weights.")}
    if {n: t.shape for n, t in own.items()} != {n: t.shape for n, t in saved.items()}:
        raise UserError(f"{folder / FILE}: belongs to a model of another shape; remove it to train anew")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(saved[name])
    moments: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".", 2)
            moments.setdefault(int(index), {})[key] = value
    optimizer.load_state_dict({"state": moments, "param_groups": optimizer.state_dict()["param_groups"]})
    found = {name.removeprefix("random."): value for name, value in tensors.items() if name.startswith("random.")}
    every = {name: states.view(-1, states.shape[-1]) for name, states in found.items()}
    set_random_states({name: states[process % len(states)] for name, states in every.items()})
    return state


def _write(path: Path, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    with atomic_file(path) as beside:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, beside, {"state": json.dumps(state)})


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            return tensors, json.loads((file.metadata() or {}).get("state", "{}"))
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path}: this checkpoint cannot be read ({error}); remove it to train anew") from error
