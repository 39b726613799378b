"""Several comparisons at once: p-values corrected so that the whole family errs no more often than one test may."""

from __future__ import annotations

from collections.abc import Sequence

from eval.errors import UserError


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's corrected p-values, in the order given.

    The smallest of ``m`` p-values is multiplied by ``m``, the next by ``m - 1`` and so on; none becomes smaller than
    one before it, nor larger than 1. A corrected value under 5% holds although ``m`` were looked at: the chance of even
    one false finding in the family stays under 5%, however the tests depend on each other.

    Args:
        p_values: One a comparison, each between 0 and 1.

    Raises:
        UserError: A value is not between 0 and 1.

    Examples:
        >>> [round(value, 3) for value in holm([0.01, 0.04, 0.03])]
        [0.03, 0.06, 0.06]

    Source:
        Holm 1979, A simple sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6.
    """
    wrong = [value for value in p_values if not 0 <= value <= 1]
    if wrong:
        raise UserError(*(f"holm: {value} is no p-value; give numbers between 0 and 1" for value in wrong))
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = largest
    return corrected
