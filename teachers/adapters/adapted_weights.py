"""The whole network of a teacher whose adapter cannot be merged, in a file of its own beside its config.

Standard ``from_pretrained`` finds no weights in such a folder and says so, instead of leaving the adapter out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from eval.errors import UserError
from eval.files.typed_json import read_typed
from teachers.adapters.adapter_block import AdapterBlock
from teachers.adapters.installing import install

WEIGHTS = "adapted.safetensors"
SETTINGS = "adapted.json"


def write_adapted(network: Any, block: AdapterBlock, folder: Path) -> None:
    """Write config, weights and ``adapted.json`` into a folder, which must exist."""
    network.config.architectures = [type(network).__name__]
    network.config.save_pretrained(folder)
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in network.state_dict().items()}
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    text = json.dumps(block.model_dump(mode="json", exclude_unset=True), indent=2)
    (folder / SETTINGS).write_text(f"{text}\n", encoding="utf-8")


def is_adapted(folder: Path) -> bool:
    """Whether a folder was written by ``write_adapted``."""
    return (folder / WEIGHTS).is_file()


def read_adapted(folder: Path, auto: Any, config: Any) -> Any:
    """Return the network that ``write_adapted`` wrote.

    Args:
        folder: Where it lies.
        auto: The Auto class of its head.
        config: The network's.

    Raises:
        UserError: If a file is missing or damaged, or the head is for another task.
    """
    network = auto.from_config(config)
    block: AdapterBlock = read_typed(folder / SETTINGS, AdapterBlock, "train the teacher anew")
    install(network, block.adapter)
    network.requires_grad_(True)
    try:
        network.load_state_dict(load_file(folder / WEIGHTS))
    except (SafetensorError, OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(
            f"{folder / WEIGHTS}: does not hold the weights of this network with its adapter, for this task ({reason})"
        ) from error
    return network
