"""Other layers for a network: some of its own kept, or one copied into another; the config stays in step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from eval.errors import UserError
from teachers.anatomy.encoder import (
    albert_groups,
    base_encoder,
    decoder_layers,
    decoder_stack,
    family_of,
    layer_count,
    layer_parts,
    layers,
    set_layer_kinds,
)


def replace_layers(model: Any, indices: Sequence[int]) -> None:
    """Keep the listed layers, in place, and bring the config in step, so that a standard reload gives the same outputs.

    ALBERT shares its layers: only their number changes. The first layer of ModernBERT has no norm before its
    attention; if another layer becomes the first, its norm is dropped and the norm's gain moves into the
    attention's weights. Where other layers use these too, or an earlier step has made something else of them, no
    standard model holds the layers in any case, and the norm stays.

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
    firsts = _chosen(encoder, str(family.layers), chosen)

    for holder in {id(holder): holder for holder in (model.config, encoder.config)}.values():
        keep_layers_in_config(holder, kept)
    _tell(encoder, family.config["layers"], len(kept), decoder_stack(encoder))
    for position, layer in enumerate(layers(model)):
        _renumber(layer, position)
    if family.model_type == "modernbert" and kept[0] != 0:
        _drop_first_norm(layers(model))
    _keep_position_bias(*firsts)


def replace_decoder_layers(model: Any, indices: Sequence[int]) -> None:
    """Keep the listed layers of the decoder, in place, and bring the config in step.

    Args:
        model: A model with an encoder and a decoder.
        indices: Layers of the decoder to keep, ascending, without repeats.

    Raises:
        UserError: If an index does not exist or the order is not ascending.
    """
    count, kept = len(decoder_layers(model)), list(indices)
    if not kept or kept != sorted(set(kept)) or kept[0] < 0 or kept[-1] >= count:
        raise UserError(f"decoder layers to keep {kept}: expected ascending numbers from 0 to {count - 1}, each once")
    family, base = family_of(model), base_encoder(model)
    firsts = _chosen(base, family.decoder, kept)
    own = family.config["decoder_layers"]
    setattr(model.config, own, len(kept))
    _tell(base, own, len(kept))
    stack = decoder_stack(base)
    if stack is not None and stack.config is not base.config:  # T5's says under the encoder's name how many it has
        setattr(stack.config, family.config["layers"], len(kept))
    for position, layer in enumerate(decoder_layers(model)):
        _renumber(layer, position)
    _keep_position_bias(*firsts)


def _chosen(base: Any, path: str, indices: Sequence[int]) -> tuple[nn.Module, nn.Module]:
    """Keep these of a list of layers; return the one that was first, and the one that is."""
    parent, _, name = path.rpartition(".")
    modules: Any = base.get_submodule(path)
    setattr(base.get_submodule(parent), name, nn.ModuleList([modules[i] for i in indices]))
    return modules[0], modules[indices[0]]


def _tell(base: Any, name: str, count: int, without: Any = None) -> None:
    """Let every part that keeps the number of layers under this name know it, but for a stack of other layers."""
    others = set() if without is None else set(map(id, without.modules()))
    parts = [part for part in base.modules() if id(part) not in others]
    configs = [part.config for part in parts if hasattr(part, "config")]
    for holder in (*parts, *configs):
        if isinstance(getattr(holder, name, None), int):
            setattr(holder, name, count)


def _keep_position_bias(before: nn.Module, now: nn.Module) -> None:
    """Give the layer that is first now T5's table of distances, which the first layer of a stack holds for all."""
    parts: dict[str, Any] = dict(now.named_modules())
    for path, given in before.named_modules() if before is not now else ():
        if getattr(given, "has_relative_attention_bias", False):
            parts[path].relative_attention_bias = given.relative_attention_bias
            parts[path].has_relative_attention_bias = True


def keep_layers_in_config(config: Any, kept: Sequence[int]) -> None:
    """Write into a config, in place, that only these of its layers are left."""
    family = family_of(config)
    if family.model_type == "albert":
        config.num_hidden_groups = len(_kept_groups(config, kept))
    if family.layer_kinds:
        kinds = getattr(config, family.layer_kinds)
        set_layer_kinds(config, [kinds[i] for i in kept])
    if family.model_type == "longformer" and isinstance(config.attention_window, list):
        config.attention_window = [config.attention_window[i] for i in kept]
    setattr(config, family.config["layers"], len(kept))


def _renumber(layer: Any, position: int) -> None:
    for module in layer.modules():
        for name in ("layer_idx", "layer_id"):
            if hasattr(module, name):
                setattr(module, name, position)


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


def _drop_first_norm(kept: Sequence[Any]) -> None:
    first, *others = kept
    after = first.attn.Wqkv
    if not isinstance(after, nn.Linear) or any(layer.attn.Wqkv is after for layer in others):
        return
    with torch.no_grad():
        after.weight.mul_(first.attn_norm.weight)
    first.attn_norm = nn.Identity()


def copy_layer(source: Any, source_layer: nn.Module, target: Any, target_layer: nn.Module) -> None:
    """Copy the weights of one layer into another of the same shape, of the same family or of one with BERT's layer.

    A Longformer begins with the projections of all tokens for those with global attention too.

    Args:
        source: The model that ``source_layer`` belongs to.
        source_layer: Copied from.
        target: The model that ``target_layer`` belongs to.
        target_layer: Copied into, in place.

    Raises:
        UserError: If the two families have different layers, or the shapes differ.
    """
    ours, theirs = family_of(target), family_of(source)
    if ours is not theirs and not (theirs.post_norm and (ours.post_norm or ours.global_parts)):
        raise UserError(
            f"a layer of {theirs.model_type} cannot become one of {ours.model_type}: they compute differently"
        )
    try:
        if ours is theirs:
            target_layer.load_state_dict(source_layer.state_dict())
            return
        given = layer_parts(source, source_layer)
        for role, module in layer_parts(target, target_layer).items():
            module.load_state_dict(given[ours.global_parts.get(role, role)].state_dict())
    except RuntimeError as error:
        raise UserError(f"the layers of {theirs.model_type} and {ours.model_type} differ in shape: {error}") from error
