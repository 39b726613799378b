"""Token vectors for students without context: from a table or from an encoder, made smaller, weighted by frequency."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from eval.encoding import Feature
from teachers.anatomy.encoder import layer_count
from teachers.signals.hooks import SignalSpec, observe
from teachers.taskmodel import TaskModel, evaluating

PIECES = 512
"""Pieces of one forward pass."""


def reduced(vectors: Tensor, size: int, counted: Tensor | None = None) -> tuple[Tensor, float]:
    """Return centred vectors along their principal axes, widest first, and the share of the variance that is kept.

    Args:
        vectors: ``[n, d]``.
        size: Axes to keep; no more than ``d`` are.
        counted: Which of them give mean and axes, boolean ``[n]``; all by default.
    """
    chosen = vectors if counted is None else vectors[counted]
    centred = (vectors - chosen.mean(dim=0)).double()
    spread = centred if counted is None else centred[counted]
    variances, axes = torch.linalg.eigh(spread.T @ spread)
    variances, axes = variances.flip(0).clamp(min=0), axes.flip(1)
    kept = variances[:size].sum() / variances.sum().clamp(min=1e-30)
    return (centred @ axes[:, :size]).float(), float(kept)


def of_one_size(vectors: Tensor, counts: Tensor | None = None) -> Tensor:
    """Return vectors divided by one number, so that their entries have a mean square of 1.

    Args:
        vectors: ``[n, d]``.
        counts: How often each of them counts in the mean, ``[n]``; once each by default.
    """
    squares = vectors.square().mean(dim=1)
    shares = torch.ones_like(squares) if counts is None else counts.to(squares.dtype)
    return vectors / ((squares * shares).sum() / shares.sum().clamp(min=1)).sqrt().clamp(min=1e-12)


def smooth_inverse_frequency(counts: Tensor, smoothing: float) -> Tensor:
    """Return the weight ``a / (a + p)`` of every token, p its share of all counted tokens.

    Arora, Liang, Ma 2017, "A simple but tough-to-beat baseline for sentence embeddings".

    Args:
        counts: How often each token was seen, ``[V]``.
        smoothing: a.
    """
    shares = counts.double() / counts.sum().clamp(min=1)
    return (smoothing / (smoothing + shares)).float()


def zipf_counts(used: Tensor) -> Tensor:
    """Return how often tokens occur if Zipf's law holds and their ids are their ranks, up to one factor, ``[V]``.

    The r-th token that is used, from 0, counts ``1 / (r + 2)``, as in model2vec; the others count 0.

    Args:
        used: Which tokens texts may hold, boolean ``[V]``.
    """
    ranks = used.cumsum(dim=0).double() + 1
    return torch.where(used, 1 / ranks, torch.zeros_like(ranks))


def least_squares(
    means: Iterable[tuple[Tensor, Tensor]], sizes: tuple[int, int], ridge: float
) -> tuple[Tensor, Tensor]:
    """Return the map ``W [d, k]`` and the shift ``c [k]`` that make ``x W + c`` as near as can be to ``y``.

    ``min sum |x W + c - y|² + ridge · (mean variance of x) · n · |W|²``, in closed form.

    Args:
        means: Batches of ``x [n, d]`` and ``y [n, k]``.
        sizes: d and k.
        ridge: Weight of the penalty, above 0.
    """
    width = sizes[0] + 1  # the shift is the map of a column of ones
    products, targets = (torch.zeros(width, columns, dtype=torch.float64) for columns in (width, sizes[1]))
    for x, y in means:
        rows = torch.cat([x, x.new_ones(len(x), 1)], dim=1).double()
        products += rows.T @ rows
        targets += rows.T @ y.double()
    count = products[-1, -1]
    centre_x, centre_y = products[-1, :-1] / count, targets[-1] / count
    spread = products[:-1, :-1] - count * torch.outer(centre_x, centre_x)
    shared = targets[:-1] - count * torch.outer(centre_x, centre_y)
    penalty = ridge * spread.diagonal().mean().clamp(min=1e-12)
    mapped = torch.linalg.solve(spread + penalty * torch.eye(len(spread), dtype=spread.dtype), shared)
    return mapped.float(), (centre_y - centre_x @ mapped).float()


def output_vectors(model: TaskModel) -> Tensor:
    """Return for every token id the encoder's last hidden state when it reads that token alone, ``[V, d]``.

    The input is ``[CLS] token [SEP]``, or what the tokenizer puts around a text; the state is the mean over all of it.

    Args:
        model: A network with transformer layers.
    """
    last, size = layer_count(model.model), int(model.model.config.vocab_size)
    found = []
    with evaluating(model.model):
        for features in _alone(model, size):
            inputs = {name: torch.from_numpy(values) for name, values in model.encoder.collate(features).items()}
            found.append(
                observe(model.model, inputs, SignalSpec(hidden_states=(last,))).hidden_states[last].mean(dim=1)
            )
    return torch.cat(found).clone()


def _alone(model: TaskModel, size: int) -> Iterator[list[Feature]]:
    """Yield inputs that each hold one token, in the order of their ids."""
    around = model.encoder.tokenizer.encode("a")
    special = around.special_tokens_mask
    start, end = special.index(0), len(special) - special[::-1].index(0)
    before, after = (around.ids[:start], around.ids[end:])
    types = [*around.type_ids[: start + 1], *around.type_ids[end:]]
    for first in range(0, size, PIECES):
        yield [Feature(0, [*before, token, *after], types) for token in range(first, min(first + PIECES, size))]
