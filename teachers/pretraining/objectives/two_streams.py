"""XLNet's two streams: the masks that make a factorization order of them, and what answers from the query stream.

Content of token i sees j where ``order(j) <= order(i)``; the query at i, which knows the place i and not the token,
sees j where ``order(j) < order(i)``. Tokens of order 0 are seen by all.

Source: Yang et al. 2019 (1906.08237).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from eval.encoding import IGNORED
from teachers.data.encoded_dataset import Batch
from teachers.pretraining.prediction_heads import Answered, RecurrentHead


def permutation_mask(order: Tensor) -> Tensor:
    """Return 1 where a token may not see another, as XLNet's ``perm_mask``; itself its content stream sees anyway.

    Args:
        order: Number of each token in the factorization order, from 1, ``[B, L]``; 0 for what every token sees.

    Returns:
        ``[B, L, L]``: of token i (second axis) and token j (third).

    Examples:
        >>> import torch
        >>> order = torch.tensor([[2, 4, 1, 3]])  # the third token first, then the first, the fourth, the second
        >>> (1 - permutation_mask(order))[0].int().tolist()
        [[0, 0, 1, 0], [1, 0, 1, 1], [0, 0, 0, 0], [1, 0, 1, 0]]
    """
    seen = (order[:, None, :] < order[:, :, None]) | (order == 0)[:, None, :]
    return (~seen).float()


def target_mapping(asked: Tensor) -> Tensor:
    """Return which place each query stands at, ``[B, targets, L]``; rows with fewer targets have queries of zeros.

    Args:
        asked: Whether a token is a target, ``[B, L]``.
    """
    most = max(1, int(asked.sum(dim=1).max()))
    numbers = torch.arange(most, device=asked.device)
    own = (asked.cumsum(dim=1) - 1)[:, None, :] == numbers[None, :, None]
    return (own & asked[:, None, :]).float()


class QueryHead(RecurrentHead):
    """The network's own output layer, at the queries of the targets.

    Args:
        network: An ``XLNetLMHeadModel``.
    """

    def __init__(self, network: Any) -> None:
        super().__init__(network, "plm")

    def prepare(self, batch: Batch) -> Batch:
        """Add the masks of the factorization order, and the memory if there is some."""
        streams = {
            "perm_mask": permutation_mask(batch.targets["plm_order"]),
            "target_mapping": target_mapping(batch.targets[self.target] != IGNORED),
        }
        return super().prepare(replace(batch, inputs={**batch.inputs, **streams}))

    def order_of(self, batch: Batch) -> dict[str, Tensor]:
        """Return the mask of the memory's own factorization order."""
        return {"perm_mask": permutation_mask(batch.targets["memory_order"])}

    def forward(self, hidden: Tensor, batch: Batch) -> dict[str, Answered]:
        """Answer for the query states ``[B, targets, d]``."""
        labels = batch.targets[self.target]
        asked = labels != IGNORED
        number = torch.arange(hidden.shape[1], device=hidden.device)
        filled = number[None] < asked.sum(dim=1, keepdim=True)
        return {self.target: Answered(self.answer(hidden, filled), labels[asked])}
