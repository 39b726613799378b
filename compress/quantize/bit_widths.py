"""How many bits each layer gets: by halves or under a budget, the most sensitive ones most."""

from __future__ import annotations

from collections.abc import Sequence

CHOICES = (2, 3, 4, 8)


def halves(sensitivities: Sequence[float], bits: tuple[int, int]) -> list[int]:
    """Return bits for each layer: the first number for the more sensitive half (the larger one), the second below.

    Examples:
        >>> halves([0.5, 3.0, 1.0, 0.1], (4, 2))
        [2, 4, 4, 2]
    """
    order = sorted(range(len(sensitivities)), key=lambda layer: (-sensitivities[layer], layer))
    upper = set(order[: -(-len(order) // 2)])
    return [bits[0] if layer in upper else bits[1] for layer in range(len(order))]


def under_budget(sensitivities: Sequence[float], sizes: Sequence[int], budget: float) -> list[int]:
    """Return bits for each layer whose mean over all weights is at most ``budget``.

    All begin with the fewest bits. Then the layer whose ``Ω · 4^-bits`` falls most for each bit that is added gets the
    next more, as long as one fits: the squared error of a uniform grid is proportional to ``4^-bits``.

    Args:
        sensitivities: Ω of each layer.
        sizes: Weights of each layer.
        budget: Mean bits of a weight, at least 2.

    Examples:
        >>> under_budget([0.5, 3.0, 1.0, 0.1], [100, 100, 100, 100], budget=5)
        [4, 8, 4, 4]
    """
    bits = [CHOICES[0]] * len(sizes)
    left = budget * sum(sizes) - CHOICES[0] * sum(sizes)
    while True:
        steps = []
        for layer, now in enumerate(bits):
            if now == CHOICES[-1]:
                continue
            more = CHOICES[CHOICES.index(now) + 1]
            if (more - now) * sizes[layer] <= left + 1e-9 * sum(sizes):
                gain = sensitivities[layer] * (4.0**-now - 4.0**-more) / (more - now)
                steps.append((gain, -layer, more))
        if not steps:
            return bits
        _, negative, more = max(steps)
        left -= (more - bits[-negative]) * sizes[-negative]
        bits[-negative] = more


def reversed_order(sensitivities: Sequence[float]) -> list[float]:
    """Return the same values the other way round: the most sensitive layer has the smallest, and so on."""
    order = sorted(range(len(sensitivities)), key=lambda layer: (sensitivities[layer], layer))
    found = [0.0] * len(order)
    for layer, other in zip(order, reversed(order), strict=True):
        found[layer] = sensitivities[other]
    return found
