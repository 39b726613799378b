"""What a model folder's weights must hold: every tensor of the network, of its shape and finite, and nothing unknown.

Transformers fills what it does not find with random weights and only logs it. Here it is an error that names the
tensors, for a model with a random layer answers, too, only worse.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from eval.errors import UserError
from eval.files.json_text import read_json
from teachers.adapters.adapted_weights import is_adapted, read_adapted
from teachers.anatomy.encoder import base_encoder, family_of

logger = logging.getLogger("teachers.weight_check")

INDEX = "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
ALIGNMENT = 64
"""Bytes at whose multiples torch puts tensors that it makes."""
NAMED = 4
"""How many tensors a message names."""
POOLER = "pooler"
"""The part of an encoder that belongs to the head: some checkpoints have none, some heads use none."""
BUFFERS = ("position_ids", "token_type_ids")
"""Last parts of the names of constants that older versions of transformers saved."""
ACCEPT = "to use it as it is, say so: --accept-incomplete, or accept_incomplete: true in the recipe's teacher block"


def read_stock(source: str, auto: Any, config: Any, *, accept_incomplete: bool = False) -> Any:
    """Return a network with the weights of a standard Hugging Face folder or hub name, in float32.

    A base may lack the task's head, which then starts with random weights; everything else has to be there.

    Args:
        source: A folder or hub name.
        auto: The Auto class of the head.
        config: The network's.
        accept_incomplete: Whether missing, unexpected, mismatched or non-finite tensors are only logged.

    Raises:
        UserError: Naming the tensors that are missing, unexpected, of another shape or not finite, or if the weights
            are a pickle.
    """
    refuse_unsafe(Path(source))
    if is_adapted(Path(source)):
        network = read_adapted(Path(source), auto, config)
        complain(source, not_finite(network), accept_incomplete)
        return network
    given = tuple(config.architectures or ())
    network, told = auto.from_pretrained(
        source,
        config=config,
        dtype=torch.float32,
        use_safetensors=True,
        trust_remote_code=False,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
    )
    problems = [*_differences(network, told, type(network).__name__ in given), *not_finite(network)]
    complain(source, problems, accept_incomplete)
    return network


def aligned(network: torch.nn.Module) -> None:
    """Move weights that begin between two cache lines, as those do that are mapped from a file, in place.

    Sums are taken in another order there, so a loaded network would differ in the last bit from the one that was saved.
    """
    for tensor in (*network.parameters(), *network.buffers()):
        if tensor.data_ptr() % ALIGNMENT:
            tensor.data = tensor.data.clone()


def complain(source: str, problems: Sequence[str], accept_incomplete: bool) -> None:
    """Raise what is wrong with the weights of ``source``, or log it if that was accepted.

    Raises:
        UserError: If there is something wrong that was not accepted.
    """
    if problems and not accept_incomplete:
        raise UserError(*(f"{source}: {problem}" for problem in problems), f"{source}: not used; {ACCEPT}")
    for problem in problems:
        logger.warning("%s: %s; accepted", source, problem)


def not_finite(network: Any) -> list[str]:
    """Return a sentence about the weights that hold NaN or an infinity; none if all are finite."""
    wrong = [
        name
        for name, tensor in network.state_dict().items()
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all())
    ]
    return [f"tensors with NaN or infinite values: {_listed(wrong)}"] if wrong else []


def refuse_unsafe(folder: Path) -> None:
    """Refuse weights that could run code or lie outside of their folder; a hub name is left to the loader.

    Raises:
        UserError: If the folder has a pickle alone, or an index that names other files than those beside it.
    """
    if not folder.is_dir():
        return
    if (folder / INDEX).is_file():
        _check_index(folder / INDEX)
        return
    pickles = [name for name in PICKLES if (folder / name).is_file()]
    if pickles and not any(folder.glob("*.safetensors")):
        raise UserError(
            f"{folder}: its weights are a pickle ({pickles[0]}), which can run code when it is read, so it is not "
            "read here; if you trust it, convert it where it came from: "
            "model.save_pretrained(folder) of transformers writes model.safetensors"
        )


def _check_index(file: Path) -> None:
    try:
        parts = set(read_json(file)["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{file}: cannot be read ({str(error)[:200]}); copy the folder anew") from error
    wrong = sorted(str(part)[:100] for part in parts if not _is_beside(file, part))
    if wrong:
        raise UserError(
            f"{file}: names {_listed(wrong)}; allowed are *.safetensors files in the same folder; copy the folder anew"
        )


def _is_beside(index: Path, part: Any) -> bool:
    return (
        isinstance(part, str)
        and Path(part).name == part
        and part.endswith(".safetensors")
        and (index.parent / part).is_file()
    )


def _differences(network: Any, told: dict[str, Any], same_class: bool) -> list[str]:
    """Return what a checkpoint lacks of a network, has besides, or has in another shape, one sentence each.

    Args:
        network: As transformers filled it.
        told: The loading info of ``from_pretrained``.
        same_class: Whether the checkpoint was saved from the very class, so that its head is due as well.
    """
    mismatched = {name: (tuple(found), tuple(wanted)) for name, found, wanted in told["mismatched_keys"]}
    missing = set(told["missing_keys"]) - mismatched.keys()
    constants = (*(f".{name}" for name in BUFFERS), *family_of(network).old_constants)
    unexpected = {name for name in told["unexpected_keys"] if not f".{name}".endswith(constants)}
    if not same_class:
        halves = {name.rpartition(".")[0] for name in _own(network) - missing}
        missing = {
            name
            for name in missing
            if _in_encoder(network, name) or (name.rpartition(".")[0] in halves and not _is_pooler(name))
        }
    elif network is base_encoder(network):
        missing = {name for name in missing if not _is_pooler(name)}
    if not same_class or network is base_encoder(network):
        unexpected = {name for name in unexpected if _in_encoder(network, name)}
        mismatched = {name: shapes for name, shapes in mismatched.items() if _in_encoder(network, name)}
    found = []
    if missing:
        found.append(f"missing from the weights: {_listed(missing)}")
    if unexpected:
        found.append(f"in the weights, but no part of the network that config.json describes: {_listed(unexpected)}")
    if mismatched:
        shapes = [f"{name} is {own}, config.json says {wanted}" for name, (own, wanted) in sorted(mismatched.items())]
        found.append(f"of another shape: {_listed(shapes)}")
    return found


def _own(network: Any) -> set[str]:
    """Return the names of the tensors that are not a second name of another, as a tied decoder's is."""
    return {name for name, _ in network.named_parameters()}


def _in_encoder(network: Any, name: str) -> bool:
    """Whether a tensor belongs to the encoder below the head; checkpoints of bare encoders have no prefix."""
    parts = {part.partition(".")[0] for part in base_encoder(network).state_dict()} - {POOLER}
    return name.removeprefix(f"{family_of(network).base}.").partition(".")[0] in parts


def _is_pooler(name: str) -> bool:
    return POOLER in name.split(".")


def _listed(names: Iterable[str]) -> str:
    names = sorted(names)
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}"
