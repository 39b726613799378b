"""ELECTRA: a small generator fills the hidden places, and a discriminator says of every token whether it was replaced.

``L = L_mlm(generator) + 50 * L_disc``. No gradient passes through the sampling, so the generator learns from the
masked-language loss alone; what it guesses right counts as original.

Source: Clark et al. 2020 (2003.10555).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (the field's own abbreviation)

from teachers.pretraining.masking import IGNORED

WEIGHT = 50.0
"""Of the discriminator's loss."""
KEPT = 0.15
"""Share of the chosen tokens that stay in the generator's input, in the authors' code; none become random tokens."""


def sample(logits: Tensor, chance: torch.Generator) -> Tensor:
    """Draw a token for each row of logits ``[N, V]`` by the Gumbel trick; ``[N]``, without a gradient."""
    noise = torch.rand(logits.shape, generator=chance, dtype=torch.float32).clamp_min(1e-20)
    return (logits.detach().float().cpu() - torch.log(-torch.log(noise))).argmax(-1).to(logits.device)


def replaced(ids: Tensor, labels: Tensor, logits: Tensor, chance: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the discriminator's input, and which of its tokens differ from the text.

    Args:
        ids: The generator's input, ``[B, L]``.
        labels: The text at hidden places, ``IGNORED`` elsewhere, ``[B, L]``.
        logits: The generator's answer, ``[B, L, V]``.
        chance: The source of chance.
    """
    hidden = labels != IGNORED
    text = torch.where(hidden, labels, ids)
    filled = text.clone()
    filled[hidden] = sample(logits[hidden], chance)
    return filled, (filled != text).to(torch.float32)


def discriminator_loss(scores: Tensor, is_replaced: Tensor, mask: Tensor) -> Tensor:
    """Return the mean binary cross-entropy over all tokens that are no padding.

    Args:
        scores: Logits of "replaced", ``[B, L]``.
        is_replaced: 1 or 0, ``[B, L]``.
        mask: 1 for real tokens, ``[B, L]``.
    """
    losses = F.binary_cross_entropy_with_logits(scores, is_replaced, reduction="none")
    return (losses * mask).sum() / mask.sum().clamp_min(1)


def auc(scores: Tensor, is_replaced: Tensor, mask: Tensor) -> float:
    """Return the area under the ROC curve; accuracy is near 0.9 by the base rate alone.

    Args:
        scores: As for ``discriminator_loss``, and so are the rest.
        is_replaced: 1 or 0.
        mask: 1 for real tokens.
    """
    real = mask.bool()
    values, positive = scores[real].double(), is_replaced[real].bool()
    count = int(positive.sum())
    if count in (0, len(values)):
        return float("nan")
    ranks = torch.empty_like(values)
    order = values.argsort()
    _, inverse, sizes = values[order].unique_consecutive(return_inverse=True, return_counts=True)
    ends = sizes.cumsum(0).double()
    ranks[order] = (ends - (sizes.double() - 1) / 2)[inverse]  # of equal scores, the mean of their ranks
    return float((ranks[positive].sum() - count * (count + 1) / 2) / (count * (len(values) - count)))
