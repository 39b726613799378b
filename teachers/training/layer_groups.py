"""The layers of a network as groups of parameters, from the head down to the embeddings, and a rate for each.

Source: Howard and Ruder 2018, arXiv 1801.06146 (ULMFiT): "discriminative fine-tuning" divides the rate by 2.6 from each
layer to the one below it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from teachers.anatomy.encoder import (
    base_encoder,
    decoder_layers,
    decoder_stack,
    family_of,
    has_decoder,
    head_parameters,
    layer_count,
    layers,
)


def layer_groups(model: Any) -> list[list[nn.Parameter]]:
    """Return every parameter once: those of the head, of each layer from the last to the first, of the embeddings.

    What only the last layer's output passes through (a pooler, a last norm) belongs to the head, or to the last layer
    if there is no head. Whatever else no layer holds belongs to the embeddings, such as DeBERTa's table of relative
    positions; an output layer that is tied to the word embeddings does, too. Layers that share their weights are one
    group, at the place of the highest: ALBERT, whose layers are all one, has three groups; a network without layers has
    two. Where a decoder reads what an encoder makes of a text, its layers stand above the encoder's, whose last norm
    belongs to the encoder's last layer.
    """
    encoder = base_encoder(model)
    inside = {id(parameter) for parameter in encoder.parameters()}
    modules = dict(encoder.named_modules())
    closing = [p for path in family_of(model).closing if path in modules for p in modules[path].parameters()]
    head = [parameter for parameter in model.parameters() if id(parameter) not in inside]
    stacked = [list(layer.parameters()) for layer in reversed(layers(model) if layer_count(model) else [])]
    if has_decoder(model):
        stacked[0] = closing + stacked[0]
        closing = list(head_parameters(model).values())
        closing += [own for name, own in decoder_stack(model).named_parameters() if name.startswith("final_layer_norm")]
        stacked = [list(layer.parameters()) for layer in reversed(decoder_layers(model))] + stacked
    if head or not stacked:
        stacked.insert(0, head + closing)
    else:
        stacked[0] = closing + stacked[0]
    return _each_once([*stacked, list(encoder.parameters())])


def rate_factors(model: Any, decay: float) -> dict[nn.Parameter, float]:
    """Return the part of the peak learning rate for each parameter: 1 for the head, times ``decay`` a group below."""
    return {
        parameter: decay**depth for depth, group in enumerate(layer_groups(model)) for parameter in group if decay != 1
    }


def _each_once(groups: Sequence[Sequence[nn.Parameter]]) -> list[list[nn.Parameter]]:
    seen: set[int] = set()
    found = []
    for group in groups:
        own = list({id(parameter): parameter for parameter in group if id(parameter) not in seen}.values())
        seen.update(map(id, own))
        if own:
            found.append(own)
    return found
