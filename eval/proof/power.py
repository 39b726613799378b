"""What so many examples can show, in a sentence."""

from __future__ import annotations


def power(smallest: float, margin: float, needed: int) -> str:
    """Return what these examples can show of equally good models, and how many a margin needs.

    Args:
        smallest: The smallest margin that these examples would show in four of five cases.
        margin: The margin that was asked for.
        needed: Examples that would show it as often.

    Examples:
        >>> power(0.02, 0.01, 1785).partition(", and ")[2]
        'within 0.01 by about 1,785'
    """
    return (
        f"of equally good models, four of five would be shown to be within {smallest:.2g} by these examples, "
        f"and within {margin:g} by about {needed:,}"
    )
