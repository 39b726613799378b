"""Multiple choice: every choice is a row of the network for itself, and the rows of an example are joined afterwards.

So batches, exports, signals of teachers and everything else that knows rows of tokens ``[B, L]`` works as it is; only
what compares the choices of an example, a loss or an answer, joins their scores.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

IMPOSSIBLE = -torch.inf
"""Score of a choice that an example lacks: it has no probability, at any temperature and in any number format."""
AXES = {"input_ids": 2, "attention_mask": 2, "token_type_ids": 2, "position_ids": 2, "inputs_embeds": 3}
"""Inputs of a network, with the number of axes that they have without one for the choices."""


def read_rows(network: Any) -> None:
    """Let a stock multiple-choice network, in place, also take rows ``[B, L]`` and answer with scores ``[B, 1]``.

    What has an axis for the choices, ``[B, choices, L]``, is taken as ever. Other networks stay as they are.
    """
    if type(network).__name__.endswith("ForMultipleChoice"):
        network.register_forward_pre_hook(_one_choice_each, with_kwargs=True)


def _one_choice_each(_network: Any, args: Any, inputs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    return args, {
        name: value.unsqueeze(1) if isinstance(value, Tensor) and value.ndim == AXES.get(name) else value
        for name, value in inputs.items()
    }


def joined_choices(scores: Tensor, counts: Tensor) -> Tensor:
    """Return the scores of each example's choices side by side, ``[examples, most choices]``.

    Args:
        scores: Scores of all choices, example after example, ``[choices, 1]``.
        counts: How many choices each example has, ``[examples]``; places beyond them get ``IMPOSSIBLE``.
    """
    there = torch.arange(int(counts.max()), device=counts.device) < counts[:, None]
    return scores.new_full(there.shape, IMPOSSIBLE).masked_scatter(there, scores)
