"""The rows of a network that stand for subword tokens: which tensors have them, and a network with some of them."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from eval.errors import UserError
from teachers.anatomy.encoder import base_encoder, family_of, shape_of, word_embeddings


def piece_axes(network: Any) -> dict[str, int]:
    """Return the name of every parameter with one row, or column, for each subword token, and that axis of it.

    They are those that grow when the standard network of the same config is made for one piece more, and the table
    itself, where it is factorised or masked. Parameters that are tied stand there under each of their names.

    Args:
        network: A network of a supported family, with or without a head.
    """
    longer = copy.deepcopy(network.config)
    setattr(longer, family_of(longer).config["vocab_size"], shape_of(longer).vocab_size + 1)
    with torch.device("meta"):
        stock, other = (type(network)._from_config(copy.deepcopy(config)) for config in (network.config, longer))
    own, table = dict(network.named_parameters(remove_duplicate=False)), word_embeddings(network).weight
    grown = dict(other.named_parameters(remove_duplicate=False))
    found = {name: 0 for name, parameter in own.items() if parameter is table}
    for name, parameter in stock.named_parameters(remove_duplicate=False):
        differing = [axis for axis, size in enumerate(parameter.shape) if size != grown[name].shape[axis]]
        if differing and name in own:
            found[name] = differing[0]
    return found


def needed_rows(config: Any) -> set[int]:
    """Return the ids that a config itself names, such as that of padding.

    Where positions are counted from padding, as in RoBERTa, all ids before it too, for its number must stay.
    """
    found = {i for value in _token_ids(config).values() for i in (value if isinstance(value, list) else [value])}
    if family_of(config).positions_after_padding:
        found |= set(range(int(config.pad_token_id) + 1))
    return {i for i in found if 0 <= i < shape_of(config).vocab_size}


def keep_rows(network: Any, kept: Sequence[int]) -> None:
    """Keep the rows of these subword tokens, in place, and bring the config in step; tied parameters stay tied.

    Args:
        network: A network of a supported family, with or without a head.
        kept: Ids that stay, ascending; the first becomes 0. Those of ``needed_rows`` must be among them.

    Raises:
        UserError: If the table is not made of ordinary numbers, such as one that is packed.
    """
    if not has_plain_table(network):
        raise UserError("the embedding matrix holds packed numbers, whose rows cannot be chosen")
    number = {old: new for new, old in enumerate(kept)}
    own = dict(network.named_parameters(remove_duplicate=False))
    made: dict[int, nn.Parameter] = {}
    for name, axis in piece_axes(network).items():
        old = own[name]
        if id(old) not in made:
            rows = old.detach().index_select(axis, torch.tensor(kept, device=old.device))
            made[id(old)] = nn.Parameter(rows, requires_grad=old.requires_grad)
        parent = network.get_submodule(name.rpartition(".")[0])
        for size in ("in_features",) if axis else ("num_embeddings", "out_features"):
            if hasattr(parent, size):
                setattr(parent, size, len(kept))
    network.get_input_embeddings().num_embeddings = len(kept)
    for module in network.modules():
        for name, parameter in module._parameters.items():
            if id(parameter) in made:
                module._parameters[name] = made[id(parameter)]
    _tell(network, number)
    for config in {id(config): config for config in (network.config, base_encoder(network).config)}.values():
        for name, value in _token_ids(config).items():
            setattr(config, name, [number.get(i, i) for i in value] if isinstance(value, list) else number[value])
        setattr(config, family_of(config).config["vocab_size"], len(kept))
    _tell_generation(network, number)


def _tell_generation(network: Any, number: Mapping[int, int]) -> None:
    """Let the settings of ``generate`` know the new ids of what begins and ends a text; one that is gone is none."""
    written = getattr(network, "generation_config", None)
    told = {} if written is None else {name: own for name, own in vars(written).items() if name.endswith("_token_id")}
    for name, value in told.items():
        if isinstance(value, int | list):
            found = [number[i] for i in value if i in number] if isinstance(value, list) else number.get(value)
            setattr(written, name, found)


def _tell(network: nn.Module, number: Mapping[int, int]) -> None:
    """Let the parts that keep the number of padding know the new one, and those that keep how many rows there are."""
    parts: list[Any] = [*network.modules()]
    for part in parts:
        if isinstance(getattr(part, "padding_idx", None), int):
            part.padding_idx = number[part.padding_idx]
        if isinstance(getattr(part, "vocab_size", None), int):
            part.vocab_size = len(number)


def has_plain_table(network: Any) -> bool:
    """Whether the embedding matrix is a parameter, so that its rows can be chosen."""
    return isinstance(getattr(word_embeddings(network), "weight", None), nn.Parameter)


def _token_ids(config: Any) -> dict[str, Any]:
    """Return the fields of a config that hold ids of its vocabulary."""
    size = shape_of(config).vocab_size
    found = {name: value for name, value in vars(config).items() if name.endswith("_token_id")}
    return {k: v for k, v in found.items() if isinstance(v, list) or (isinstance(v, int) and 0 <= v < size)}
