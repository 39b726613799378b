"""Calibration examples as a network's inputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from eval.task import Examples
    from teachers.taskmodel import TaskModel

BATCH = 16
"""Examples that run at once."""


def input_batches(student: TaskModel, examples: Examples) -> Iterator[dict[str, Tensor]]:
    """Yield the inputs of examples in their order, ``[B, L]`` each."""
    import torch

    features = student.encoder.encode(examples)
    for start in range(0, len(features), BATCH):
        arrays = student.encoder.collate(features[start : start + BATCH])
        yield {name: torch.from_numpy(values) for name, values in arrays.items()}
