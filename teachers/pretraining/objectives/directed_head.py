"""A masked-language head of a network whose tokens do not all see each other, and the mask that says which do.

Source: Dong et al. 2019 (UniLM, 1905.03197), figure 1 and equation 2.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from teachers.data.encoded_dataset import Batch
from teachers.pretraining.prediction_heads import WordHead


def visible(steps: Tensor, mask: Tensor) -> Tensor:
    """Return which tokens see which, booleans ``[B, L, L]``: of token i (second axis) and token j (third).

    A token sees the real ones of its own step and of earlier ones. Padding sees all real tokens, so that no row is
    empty.

    Args:
        steps: Step of each token, ``[B, L]``; whatever of padding.
        mask: 1 for real tokens, ``[B, L]``.

    Examples:
        >>> import torch
        >>> visible(torch.tensor([[0, 0, 1, 2]]), torch.ones(1, 4))[0].int().tolist()
        [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    """
    real = mask.bool()
    return real[:, None, :] & ((steps[:, None, :] <= steps[:, :, None]) | ~real[:, :, None])


class DirectedHead(WordHead):
    """The network's own masked-language head; the steps of the tokens stand in the target ``…_steps``."""

    def prepare(self, batch: Batch) -> Batch:
        """Put what is added to attention scores ``[B, 1, L, L]`` in the place of the mask of padding."""
        seen = visible(batch.targets[f"{self.target}_steps"], batch.inputs["attention_mask"])
        dtype = self._network[0].dtype
        added = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
        added = added.masked_fill(~seen, torch.finfo(dtype).min)[:, None]
        return replace(batch, inputs={**batch.inputs, "attention_mask": added})
