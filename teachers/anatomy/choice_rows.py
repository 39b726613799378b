"""Networks of multiple choice: every choice is a row for itself, and the rows of an example are joined afterwards.

So batches, exports, teacher outputs and everything else that knows rows of tokens ``[B, L]`` works as it is; only
what compares the choices of an example, a loss or an answer, joins their scores.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

AXES = {"input_ids": 2, "attention_mask": 2, "token_type_ids": 2, "position_ids": 2, "inputs_embeds": 3}
"""Inputs of a network, with the number of axes that they have without one for the choices."""


def read_rows(network: Any) -> None:
    """Let a standard multiple-choice network, in place, also take rows ``[B, L]`` and answer with scores ``[B, 1]``.

    What has an axis for the choices, ``[B, choices, L]``, is taken as ever. Other networks stay as they are.
    """
    if type(network).__name__.endswith("ForMultipleChoice"):
        network.register_forward_pre_hook(_one_choice_each, with_kwargs=True)


def _one_choice_each(_network: Any, args: Any, inputs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    return args, {
        name: value.unsqueeze(1) if isinstance(value, Tensor) and value.ndim == AXES.get(name) else value
        for name, value in inputs.items()
    }
