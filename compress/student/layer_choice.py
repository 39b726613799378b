"""Which layers of a deep model a shallow one keeps."""

from __future__ import annotations

import math
from typing import Literal

Pick = Literal["spread", "stride", "first", "last"]


def choose_layers(total: int, count: int, pick: Pick = "spread") -> tuple[int, ...]:
    """Return ``count`` of ``total`` layers, ascending.

    Args:
        total: Layers of the deep model.
        count: Layers to keep, 1 to ``total``.
        pick: ``spread``: evenly, the first and the last included, as the script of DistilBERT does (Sanh et al. 2019,
            arXiv 1910.01108): 6 of 12 are 0, 2, 4, 7, 9, 11. ``stride``: evenly from the first, as LayerDrop's "every
            other" (Fan et al. 2020, arXiv 1909.11556): 6 of 12 are 0, 2, 4, 6, 8, 10. ``first`` and ``last``: a block.

    Raises:
        ValueError: If ``count`` is out of range.
    """
    if not 1 <= count <= total:
        raise ValueError(f"cannot keep {count} of {total} layers")
    if pick == "first":
        return tuple(range(count))
    if pick == "last":
        return tuple(range(total - count, total))
    if pick == "stride" or count == 1:
        return tuple(i * total // count for i in range(count))
    return tuple(round(i * (total - 1) / (count - 1)) for i in range(count))


def every_other(total: int, rate: float) -> tuple[int, ...]:
    """Return the layers that LayerDrop's rule "every other" keeps (Fan et al. 2020, arXiv 1909.11556).

    Counted from 1, as the authors' own example does, the layers d with ``d mod floor(1 / rate) = 0`` are dropped. Above
    one half the rule would drop every layer; there, which is not in the paper, every ``round(1 / (1 - rate))``-th layer
    is kept, from the first on.

    Args:
        total: Layers of the deep model.
        rate: Share of them to drop, above 0 and below 1; what is dropped may be less, as 1/rate is rounded down.
    """
    slack = 1e-9  # 1 / 0.2 and its like are whole numbers
    if rate <= 0.5:
        period = math.floor(1 / rate + slack)
        return tuple(i for i in range(total) if (i + 1) % period)
    return tuple(range(0, total, round(1 / (1 - rate))))
