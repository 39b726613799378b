"""The directions of embedding tables in which most lies: what is left of them in fewer channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from eval.task import Examples
    from teachers.taskmodel import TaskModel


def token_shares(student: TaskModel, examples: Examples) -> Tensor:
    """Return the part of all tokens of the examples that each word has, ``[V]`` in float64; one is added to each count.

    The one that is added keeps words that do not occur from being given up.
    """
    from teachers.anatomy.encoder import word_embeddings

    counts = torch.ones(word_embeddings(student.model).num_embeddings, dtype=torch.float64)
    for feature in student.encoder.encode(examples):
        ids = torch.tensor(feature.ids)
        counts.index_add_(0, ids, torch.ones(len(ids), dtype=torch.float64))
    return counts / counts.sum()


def second_moment(table: Tensor, shares: Tensor | None = None) -> Tensor:
    """Return ``sum_i p_i w_i w_iᵀ`` over the rows of a table ``[rows, d]``, ``[d, d]`` in float64.

    Args:
        table: The rows.
        shares: p, ``[rows]``, sum 1; every row alike by default.
    """
    rows = table.detach().double()
    return rows.T @ rows / len(rows) if shares is None else rows.T @ (rows * shares[:, None])


def moment_of_sum(tables: Sequence[Tensor], shares: Sequence[Tensor | None]) -> Tensor:
    """Return ``E x xᵀ`` of a sum of one row from each table, drawn independently: ``[d, d]`` in float64.

    It is the sum of the tables' covariances and of the outer product of the mean with itself. So a table whose rows
    stand in every sum, such as that of token types, counts by how often they do, not by how few they are.

    Args:
        tables: ``[rows, d]`` each.
        shares: For each how often a row is drawn; None for every row alike.
    """
    width = tables[0].shape[1]
    total, mean = torch.zeros(width, width, dtype=torch.float64), torch.zeros(width, dtype=torch.float64)
    for table, p in zip(tables, shares, strict=True):
        rows = table.detach().double()
        own = rows.mean(dim=0) if p is None else p @ rows
        total += second_moment(rows - own, p)
        mean = mean + own
    return total + torch.outer(mean, mean)


def principal(moment: Tensor, size: int) -> tuple[Tensor, float]:
    """Return the ``size`` orthonormal directions that hold most of a second moment, and the part that is lost.

    Args:
        moment: ``[d, d]``.
        size: How many.

    Returns:
        ``[d, size]`` in float64, the greatest first, and ``1 - kept / all``.
    """
    values, vectors = torch.linalg.eigh(moment)
    values, vectors = values.flip(0).clamp_min(0), vectors.flip(1)
    # A direction is known but for its sign: its largest number is made positive.
    signs = vectors.gather(0, vectors.abs().argmax(dim=0, keepdim=True)).sign()
    return (vectors * signs)[:, :size], float(values[size:].sum() / values.sum().clamp_min(1e-300))
