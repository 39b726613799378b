"""The dense layer over the first token that some encoders carry for the heads above them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def pooler_output(encoder: Any, states: torch.Tensor) -> Any:
    """Return what an encoder's own pooler makes of its last states ``[B, L, d]``; None if it has none."""
    pooler = getattr(encoder, "pooler", None)
    if isinstance(pooler, nn.Linear):  # ALBERT's activation stands beside it
        return encoder.pooler_activation(pooler(states[:, 0]))
    return None if pooler is None else pooler(states)


def without_pooler(encoder: Any) -> Any:
    """Return an encoder that keeps no pooler, changed in place; heads of their own read its hidden states."""
    if getattr(encoder, "pooler", None) is not None:
        encoder.pooler = None
    return encoder
