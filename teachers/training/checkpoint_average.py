"""Checkpoint averaging: the mean of the weights at the ends of the last epochs.

Source: Vaswani et al. 2017 (1706.03762), section 6.1.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from teachers.training.checkpoint import read_weights, save_weights, weights


class LastWeights:
    """The weights of networks at the last few ends of epochs, in files beside the checkpoint, or in memory.

    Args:
        most: How many are kept; 1 keeps none, for the last weights are there anyway.
        folder: Where files go; None keeps the weights in memory.
        writes: Whether this process writes the files.
    """

    def __init__(self, most: int, folder: Path | None, writes: bool = True) -> None:
        self.most, self.folder, self.writes = most, folder, writes
        self.memory: dict[int, dict[str, Tensor]] = {}

    def keep(self, step: int, steps: list[int], networks: list[nn.Module]) -> list[int]:
        """Keep the weights as they are now, and drop the oldest.

        Args:
            step: Optimizer steps made.
            steps: Those at which the weights that are kept were taken.
            networks: Whose weights.

        Returns:
            The steps of all that are kept, ascending.
        """
        if self.most == 1:
            return []
        kept = sorted({*steps, step})
        dropped, kept = kept[: -self.most], kept[-self.most :]
        if self.folder is None:
            self.memory[step] = {name: tensor.detach().cpu().clone() for name, tensor in weights(*networks).items()}
        elif self.writes:
            save_weights(self._file(step), *networks)
        for old in dropped:
            self.memory.pop(old, None)
            if self.folder is not None and self.writes:
                self._file(old).unlink(missing_ok=True)
        return kept

    def load_mean(self, steps: list[int], networks: list[nn.Module]) -> None:
        """Give networks the mean of the weights that were kept after these steps.

        Sums are in float64; numbers that are no floats stay those of the last.
        """
        own = weights(*networks)
        total = {name: tensor.new_zeros(tensor.shape, dtype=torch.float64) for name, tensor in own.items()}
        with torch.no_grad():
            for step in steps:
                kept = self.memory[step] if self.folder is None else read_weights(self._file(step))
                for name, tensor in kept.items():
                    total[name] += tensor.to(total[name].device)
            for name, tensor in own.items():
                if tensor.is_floating_point():
                    tensor.copy_(total[name] / len(steps))

    def _file(self, step: int) -> Path:
        return (self.folder or Path()) / f"weights-{step}.safetensors"
