"""The schedule of the learning rate over a training, as a part of its peak; pure functions of step and total."""

from __future__ import annotations

import math

from teachers.training.config import Training

RATIO = 32
"""How many times smaller than its peak the slanted triangular rate is at both ends."""


def rate(training: Training, step: int, total: int) -> float:
    """Return the part of the peak learning rate that update ``step`` (from 0) of ``total`` takes, 0 to 1."""
    if training.schedule == "slanted_triangular":
        return slanted_triangular(step, total, training.warmup_steps)
    warm = warmup_steps(training, total)
    if step < warm:
        return (step + 1) / warm
    if training.schedule == "noam":
        return noam(step + 1, max(warm, 1))
    left = (total - step) / max(total - warm, 1)
    if training.schedule == "linear":
        return left
    if training.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * (1 - left)))
    return 1.0


def warmup_steps(training: Training, total: int) -> int:
    """Return in how many of ``total`` optimizer steps the rate rises."""
    given = training.warmup_steps
    return math.ceil(given * total) if given < 1 else int(given)


def slanted_triangular(step: int, total: int, warmup: float) -> float:
    """Rise in a straight line from 1/32 of the peak to the peak at ``cut``, and fall in a straight line to 1/32.

    ``cut = floor(total * warmup)``, or ``warmup`` itself from 1 on, ``p = step / cut`` before it and
    ``1 - (step - cut) / (total - cut)`` after it, and the rate is ``(1 + 31 p) / 32``. The paper divides by
    ``cut * (1 / warmup - 1)``, which is the same where ``total * warmup`` is a whole number;
    elsewhere its rate would fall below 1/32, even below 0. A short
    training whose cut is 0 starts at the peak.

    Source: Howard and Ruder 2018, arXiv 1801.06146 (ULMFiT; cut fraction 0.1).
    """
    cut = math.floor(total * warmup) if warmup < 1 else int(warmup)
    part = step / cut if step < cut else 1 - (step - cut) / max(total - cut, 1)
    return (1 + part * (RATIO - 1)) / RATIO


def noam(step: int, warm: int) -> float:
    """Return ``min(step^-0.5, step * warm^-1.5)`` divided by its peak ``warm^-0.5``; ``step`` counts from 1.

    Source: Vaswani et al. 2017, arXiv 1706.03762.
    """
    return min(math.sqrt(warm / step), step / warm)
