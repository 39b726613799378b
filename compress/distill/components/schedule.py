"""A hyper-parameter that changes while training goes on, such as a temperature that falls."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Literal

from pydantic import ConfigDict, Field

from teachers.renamed import RenamedFields


class Schedule(RenamedFields):
    """A value that goes from one number to another over the training.

    Attributes:
        from_: Value at the first optimizer step; written ``from``.
        to: Value at the last one, which a training of a single step has from the start.
        shape: ``linear``, or ``cosine``: slow at both ends, fastest in the middle.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False)
    renamed: ClassVar[Mapping[str, str]] = MappingProxyType({"course": "shape"})

    from_: float = Field(alias="from")
    to: float
    shape: Literal["linear", "cosine"] = "linear"

    def at(self, progress: float) -> float:
        """Return the value at this point of the training: 0 is its first optimizer step, 1 its last, exactly ``to``."""
        if self.shape == "cosine":
            progress = (1 - math.cos(math.pi * progress)) / 2
        return self.to if progress >= 1 else self.from_ + (self.to - self.from_) * progress


def value_at(value: float | Schedule, progress: float) -> float:
    """Return a fixed value as it is, and a schedule's value at this point of the training."""
    return value.at(progress) if isinstance(value, Schedule) else value


def check_ends(name: str, value: float | Schedule, lowest: float, highest: float) -> None:
    """Refuse a schedule one of whose ends lies outside of a range; a fixed value has its own bounds.

    Raises:
        ValueError: Naming the number and the range.
    """
    for number in (value.from_, value.to) if isinstance(value, Schedule) else ():
        if not lowest <= number <= highest:
            raise ValueError(f"{name} goes to {number:g}; it must stay between {lowest:g} and {highest:g}")
