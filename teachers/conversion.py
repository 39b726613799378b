"""A model as one of another family, with the same weights as far as the two families agree."""

from __future__ import annotations

import copy
from typing import Any

import torch

from teachers.anatomy.encoder import (
    embedding_parts,
    family_of,
    first_position,
    head_parts,
    layers,
    max_tokens,
    new_config,
    shape_of,
)
from teachers.anatomy.families import FAMILIES
from teachers.anatomy.layer_changes import copy_layer
from teachers.taskmodel import TaskModel, build_taskmodel


def convertible(config: Any) -> tuple[str, ...]:
    """Return the families that a model of this shape can become, its own left out; none for most families."""
    family, shape = family_of(config), shape_of(config)
    if not _plain(family.model_type) or shape.embedding_size not in (None, shape.hidden_size):
        return ()
    return tuple(
        name for name in FAMILIES if name != family.model_type and (_plain(name) or FAMILIES.get(name).global_parts)
    )


def _plain(model_type: str) -> bool:
    return FAMILIES.get(model_type).post_norm and model_type != "albert"


def convert(source: TaskModel, model_type: str, seed: int = 0) -> TaskModel:
    """Return the same network as a model of another family.

    Layers, word and position embeddings, the embedding norm and the head are copied. A family without token types
    (DistilBERT) gets the embedding of type 0 added to its positions, so a single text keeps its exact hidden
    states; DistilBERT's own authors dropped it. Where the hidden layer of the classification head has another
    activation (tanh in BERT and RoBERTa, gelu in ELECTRA, relu in DistilBERT) its weights are copied all the same,
    as a start for training. What the source lacks is random, but for the projections of Longformer's tokens with global
    attention, which begin as those of all tokens (Beltagy et al. 2020, arXiv 2004.05150, section 5). While every token
    is within a window and none has global attention, the Longformer gives the same states.

    Args:
        source: A model for which ``convertible`` names ``model_type``.
        model_type: The family wanted.
        seed: Seeds what is not copied.
    """
    config = new_config(model_type, source.model.config, source.tokenizer)
    result = build_taskmodel(config, copy.deepcopy(source.tokenizer), source.task, seed=seed, name=source.name)
    with torch.no_grad():
        _copy_embeddings(source.model, result.model)
        for old, new in zip(layers(source.model), layers(result.model), strict=True):
            copy_layer(source.model, old, result.model, new)
        ours, theirs = head_parts(result.model), head_parts(source.model)
        for role in ours.keys() & theirs.keys():
            ours[role].load_state_dict(theirs[role].state_dict())
    return result


def _copy_embeddings(source: Any, target: Any) -> None:
    old: dict[str, Any] = embedding_parts(source)
    new: dict[str, Any] = embedding_parts(target)
    for role in ("words", "norm"):
        new[role].load_state_dict(old[role].state_dict())
    tokens = min(max_tokens(source.config), max_tokens(target.config))
    first, then = first_position(source.config), first_position(target.config)
    positions = old["positions"].weight[first : first + tokens].clone()
    for role in ("token_types", "task_types"):
        if role in old and role in new:
            new[role].load_state_dict(old[role].state_dict())
        elif role in old:
            positions += old[role].weight[0]
        elif role in new:
            new[role].weight.zero_()
    new["positions"].weight[then : then + tokens] = positions
