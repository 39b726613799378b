"""From the states of tokens to one vector a text; how it is done is written into a network's config, as labels are.

The files in which the sentence-transformers library says the same are those of ``teachers.sentence_folder``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (the field's own abbreviation)

from eval.task import TaskSpec
from teachers.anatomy.encoder import classifier_place

FIELD = "sentence_vector"
"""The field of a transformers config that says how states become a vector."""


def set_pooling(config: Any, task: TaskSpec) -> None:
    """Write into a transformers config how a text's vector is made; what else stands there stays."""
    known = getattr(config, FIELD, None) or {}
    setattr(config, FIELD, {**known, "pooling": task.pooling, "normalize": task.normalize})


def pooled(states: Tensor, mask: Tensor, config: Any) -> Tensor:
    """Return the vectors of texts, ``[B, d]``.

    Args:
        states: Last hidden states, ``[B, L, d]``.
        mask: 1 for real tokens, ``[B, L]``.
        config: A config that ``set_pooling`` has seen.
    """
    pooling = getattr(config, FIELD)["pooling"]
    if pooling == "first":
        return normalized(states[:, classifier_place(config)], config)
    if pooling == "max":
        return normalized(
            states.masked_fill(mask.unsqueeze(-1) == 0, torch.finfo(states.dtype).min).amax(dim=1), config
        )
    weights = mask.to(states.dtype)
    if pooling != "mean":
        weights = weights * weights.cumsum(dim=1)  # the places of real tokens, from 1
    if pooling == "last":
        weights = mask.to(states.dtype) * (weights == weights.amax(dim=1, keepdim=True))
    weights = weights.unsqueeze(-1)
    return normalized((states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1), config)


def last_real(states: Tensor, mask: Tensor) -> Tensor:
    """Return the states of the last real token of each text, ``[B, d]``; see ``pooled`` for the arguments."""
    places = torch.arange(mask.shape[1], device=mask.device) * mask
    return states[torch.arange(len(states), device=states.device), places.argmax(dim=1)]


def normalized(vectors: Tensor, config: Any) -> Tensor:
    """Return vectors ``[B, d]`` scaled to length 1, if the config says so."""
    return F.normalize(vectors, dim=-1) if getattr(config, FIELD)["normalize"] else vectors
