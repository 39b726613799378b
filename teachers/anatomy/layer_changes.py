"""Other layers for a network: some of its own kept, or one copied into another; the config stays in step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from eval.errors import UserError
from teachers.anatomy.encoder import albert_groups, base_encoder, family_of, layer_count, layer_parts, layers


def replace_layers(model: Any, indices: Sequence[int]) -> None:
    """Keep the listed layers, in place, and bring the config in step, so that a standard reload gives the same outputs.

    ALBERT shares its layers: only their number changes. The first layer of ModernBERT has no norm before its
    attention; if another layer becomes the first, its norm is dropped and the norm's gain moves into the
    attention's weights.

    Args:
        model: A model of a supported family, with or without a head.
        indices: Layers to keep, ascending, without repeats.

    Raises:
        UserError: If an index does not exist, the order is not ascending, or several groups of shared layers
            could not be run as often as the kept layers ask.
    """
    count, kept = layer_count(model), list(indices)
    if not kept or kept != sorted(set(kept)) or kept[0] < 0 or kept[-1] >= count:
        raise UserError(f"layers to keep {kept}: expected ascending numbers from 0 to {count - 1}, each once")
    family, encoder = family_of(model), base_encoder(model)
    chosen = _kept_groups(encoder.config, kept) if family.model_type == "albert" else kept
    parent, _, name = str(family.layers).rpartition(".")
    modules = encoder.get_submodule(str(family.layers))
    setattr(encoder.get_submodule(parent), name, nn.ModuleList([modules[i] for i in chosen]))

    for holder in {id(holder): holder for holder in (model.config, encoder.config)}.values():
        keep_layers_in_config(holder, kept)
    own = family.config["layers"]
    for module in encoder.modules():
        if isinstance(getattr(module, own, None), int):
            setattr(module, own, len(kept))
    for position, layer in enumerate(layers(model)):
        _renumber(layer, position)
    if family.model_type == "modernbert" and kept[0] != 0:
        _drop_first_norm(layers(model)[0])


def keep_layers_in_config(config: Any, kept: Sequence[int]) -> None:
    """Write into a config, in place, that only these of its layers are left."""
    family = family_of(config)
    if family.model_type == "albert":
        config.num_hidden_groups = len(_kept_groups(config, kept))
    if family.model_type == "modernbert":
        config.layer_types = [config.layer_types[i] for i in kept]
    setattr(config, family.config["layers"], len(kept))


def _renumber(layer: Any, position: int) -> None:
    for module in layer.modules():
        if hasattr(module, "layer_idx"):
            module.layer_idx = position


def _kept_groups(config: Any, kept: Sequence[int]) -> list[int]:
    groups = albert_groups(config)
    wanted = [groups[i] for i in kept]
    distinct = list(dict.fromkeys(wanted))
    per_group = len(kept) / len(distinct)
    run = [distinct[int(i / per_group)] for i in range(len(kept))]
    if wanted != run:
        raise UserError(
            f"layers to keep {list(kept)}: they run the groups of shared weights {wanted}, and ALBERT with "
            f"{len(kept)} layers would run {run}; choose others (layers 0 to {len(groups) - 1} run {groups})"
        )
    return distinct


def _drop_first_norm(layer: Any) -> None:
    with torch.no_grad():
        layer.attn.Wqkv.weight.mul_(layer.attn_norm.weight)
    layer.attn_norm = nn.Identity()


def copy_layer(source: Any, source_layer: nn.Module, target: Any, target_layer: nn.Module) -> None:
    """Copy the weights of one layer into another of the same shape, of the same family or of one with BERT's layer.

    Args:
        source: The model that ``source_layer`` belongs to.
        source_layer: Copied from.
        target: The model that ``target_layer`` belongs to.
        target_layer: Copied into, in place.

    Raises:
        UserError: If the two families have different layers, or the shapes differ.
    """
    ours, theirs = family_of(target), family_of(source)
    if ours is not theirs and not (ours.post_norm and theirs.post_norm):
        raise UserError(
            f"a layer of {theirs.model_type} cannot become one of {ours.model_type}: they compute differently"
        )
    try:
        if ours is theirs:
            target_layer.load_state_dict(source_layer.state_dict())
            return
        given = layer_parts(source, source_layer)
        for role, module in layer_parts(target, target_layer).items():
            module.load_state_dict(given[role].state_dict())
    except RuntimeError as error:
        raise UserError(f"the layers of {theirs.model_type} and {ours.model_type} differ in shape: {error}") from error
