"""Student's t distribution with the standard library alone, for intervals from few groups or few seeds."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

STEPS = 300
"""Most terms of the continued fraction; 20 are usual."""


def survival(value: float, freedom: float) -> float:
    """Return the probability of more than ``value``.

    Args:
        value: Any number.
        freedom: Degrees of freedom, above 0; infinity is the normal distribution.
    """
    if math.isinf(value):
        return float(value < 0)
    if math.isinf(freedom):
        return 0.5 * math.erfc(value / math.sqrt(2))
    tail = 0.5 * _incomplete_beta(freedom / (freedom + value * value), freedom / 2, 0.5)
    return tail if value > 0 else 1 - tail


@lru_cache(maxsize=1024)
def quantile(chance: float, freedom: float) -> float:
    """Return the value that is not exceeded with this probability.

    Args:
        chance: Between 0 and 1.
        freedom: Degrees of freedom, above 0; infinity is the normal distribution.
    """
    if math.isinf(freedom):
        return NormalDist().inv_cdf(chance)
    if chance < 0.5:
        return -quantile(1 - chance, freedom)
    low, high = 0.0, 1.0
    while survival(high, freedom) > 1 - chance:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if survival(middle, freedom) > 1 - chance else (low, middle)
    return high


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function, by Lentz's method.

    Source: Press et al. 2007, Numerical Recipes, section 6.4.
    """
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(1 - x, b, a)
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    last = 1.0
    inverse = 1 / (1 - (a + b) * x / (a + 1))
    fraction = inverse
    for m in range(1, STEPS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            inverse = 1 / (1 + term * inverse)
            last = 1 + term / last
            fraction *= last * inverse
        if abs(last * inverse - 1) < 1e-15:
            break
    return math.exp(scale) * fraction / a
