"""Attention and relations between tokens, and their distances, as pure functions; what is not seen never counts.

Scores are computed from queries and keys (or values), so that no network has to keep its attention maps.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (the field's own abbreviation)

Reduction = Literal["valid", "code"]


def relation_scores(left: Tensor, right: Tensor, heads: int, bias: Tensor | None = None) -> Tensor:
    """Return the scaled products of every two tokens, head by head, before any softmax.

    With queries and keys these are a layer's attention scores; with values twice, MiniLM's value relation.

    Args:
        left: ``[B, L, heads · d]``.
        right: The same.
        heads: Heads that the channels are split into; it must divide them.
        bias: What the network adds to every product by distance, ``[heads, L, L]``.

    Returns:
        ``[B, heads, L, L]``, divided by ``sqrt(d)`` before the bias is added.

    Examples:
        >>> import torch
        >>> queries, keys = torch.ones(2, 5, 8), torch.ones(2, 5, 8)
        >>> scores = relation_scores(queries, keys, heads=2)
        >>> scores.shape, scores[0, 0, 0, 0].item()
        (torch.Size([2, 2, 5, 5]), 2.0)
    """
    first, second = (x.reshape(*x.shape[:2], heads, -1).transpose(1, 2) for x in (left, right))
    scores = first @ second.transpose(-1, -2) / math.sqrt(first.shape[-1])
    return scores if bias is None else scores + bias.to(scores.device)


def match_heads(student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    """Average neighbouring heads until both sides have as many: the greatest common divisor of their numbers.

    Args:
        student: ``[B, h, L, L]``.
        teacher: ``[B, h', L, L]``.

    Returns:
        Both ``[B, gcd(h, h'), L, L]``.
    """
    heads = math.gcd(student.shape[1], teacher.shape[1])
    first, second = (
        x if x.shape[1] == heads else x.reshape(x.shape[0], heads, -1, *x.shape[2:]).mean(dim=2)
        for x in (student, teacher)
    )
    return first, second


def seen_keys(mask: Tensor, causal: bool) -> Tensor:
    """Return which keys each query sees: real tokens, of a decoder those up to the query itself.

    Args:
        mask: 1 for real tokens, ``[B, L]``.
        causal: Whether a token sees itself and those before it alone.

    Returns:
        Booleans ``[B, 1, 1, L]``, of a decoder ``[B, 1, L, L]``.

    Examples:
        >>> import torch
        >>> seen_keys(torch.tensor([[1, 1, 0]]), causal=True)[0, 0].int().tolist()
        [[1, 0, 0], [1, 1, 0], [1, 1, 0]]
    """
    real = mask.bool()[:, None, None, :]
    length = mask.shape[1]
    return real & torch.ones(length, length, dtype=torch.bool, device=mask.device).tril() if causal else real


def attention_mse(
    student: Tensor,
    teacher: Tensor,
    mask: Tensor,
    reduction: Reduction = "valid",
    causal: bool = False,
    queries: Tensor | None = None,
) -> Tensor:
    """Return the mean squared difference of attention scores (Jiao et al. 2020, arXiv 1909.10351).

    Args:
        student: Scores before the softmax, ``[B, heads, L, L]``, or ``[B, heads, T, L]`` of other queries than keys.
        teacher: The same shape.
        mask: 1 for real tokens, ``[B, L]``.
        reduction: ``valid`` averages over pairs of real tokens. ``code`` does as the authors' code: scores of padded
            keys count as 0 on both sides but stay in the average, and queries that are padding count.
        causal: Whether a token sees itself and those before it alone; other pairs are treated as padding.
        queries: Nonzero for real queries, ``[B, T]``, where they are of other tokens than the keys.

    Examples:
        >>> import torch
        >>> student, teacher = torch.zeros(1, 4, 3, 3), torch.ones(1, 4, 3, 3)
        >>> attention_mse(student, teacher, torch.tensor([[1, 1, 0]])).item()
        1.0
    """
    keys = seen_keys(mask, causal)
    squares = (student - teacher).square().masked_fill(~keys, 0.0)
    if reduction == "code":
        return squares.mean()
    pairs = keys & (mask if queries is None else queries).bool()[:, None, :, None]
    return (squares * pairs).sum() / (pairs.sum() * student.shape[1])


def relation_rows(student: Tensor, teacher: Tensor, mask: Tensor, causal: bool = False) -> Tensor:
    """Return ``KL(softmax(teacher) ‖ softmax(student))`` over the keys, of each head and query; ``[B, heads, L]``.

    Keys that are not seen have no probability; 0 for equal scores.

    Args:
        student: Scores before the softmax, ``[B, heads, L, L]``.
        teacher: The same shape.
        mask: 1 for real tokens, ``[B, L]``.
        causal: Whether a token sees itself and those before it alone.
    """
    lowest = torch.finfo(student.dtype).min / 4
    keys = seen_keys(mask, causal)
    first, second = (F.log_softmax(x.masked_fill(~keys, lowest), dim=-1) for x in (student, teacher))
    return F.kl_div(first, second, reduction="none", log_target=True).sum(dim=-1)


def relation_kl(student: Tensor, teacher: Tensor, mask: Tensor, causal: bool = False) -> Tensor:
    """Return the mean of ``relation_rows`` over heads and queries; padded queries do not count.

    Averaged over the real tokens of each sentence, then over sentences, as MiniLM's formula has it (Wang et al. 2020,
    arXiv 2002.10957).

    Args:
        student: Scores before the softmax, ``[B, heads, L, L]``.
        teacher: The same shape.
        mask: 1 for real tokens, ``[B, L]``.
        causal: Whether a token sees itself and those before it alone.

    Examples:
        >>> import torch
        >>> scores, mask = torch.randn(2, 4, 5, 5), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
        >>> relation_kl(scores, scores, mask).item()
        0.0
    """
    real = mask.bool()
    rows = relation_rows(student, teacher, mask, causal).mean(dim=1)
    return ((rows * real).sum(dim=1) / real.sum(dim=1)).mean()
