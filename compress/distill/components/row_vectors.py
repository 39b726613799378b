"""Vectors of all rows of an embedding task, by a model that does not learn."""

from __future__ import annotations

import torch
from torch import Tensor

from eval.inference import batches_by_length
from teachers.data.encoded_dataset import EncodedDataset
from teachers.signals.model_teacher import Reader


def row_vectors(rows: EncodedDataset, reader: Reader) -> Tensor:
    """Return the vector of every row, ``[rows, d]``.

    Args:
        rows: Texts, each a row of its own.
        reader: Gives a model's outputs of a batch.
    """
    found: dict[int, Tensor] = {}
    with torch.no_grad():
        for numbers in batches_by_length(rows.lengths, 32):
            found |= dict(zip(numbers, reader(rows.batch(numbers)).logits.float().cpu(), strict=True))
    return torch.stack([found[row] for row in range(len(rows))])
