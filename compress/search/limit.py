"""A limit of a budget, written as a line such as ``p50_ms <= 2 @ batch 1, 1 thread``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, PlainSerializer

from compress.reading.base_block import Block
from compress.reading.wording import shown
from eval.errors import did_you_mean

Cost = Literal["bytes", "macs", "parameters", "p50_ms"]
COSTS: tuple[Cost, ...] = ("bytes", "macs", "parameters", "p50_ms")
"""What a candidate costs; each is known before it is trained, but for the milliseconds of a model with early exits."""
LARGE = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9}
UNITS: Mapping[str, Mapping[str, float]] = {
    "bytes": {"": 1.0, "B": 1.0, **{f"{letter}B": size for letter, size in LARGE.items() if letter}},
    "macs": LARGE,
    "parameters": LARGE,
    "p50_ms": {"": 1.0, "ms": 1.0},
    "loss": {"": 1.0, "point": 0.01, "points": 0.01},
    "hours": {"": 1.0, "h": 1.0},
}
LINE = re.compile(r"\s*(\w+)\s*<=\s*(\d+(?:\.\d+)?)\s*(\w*)\s*(?:@\s*(.+?)\s*)?")
CONDITION = re.compile(r"batch (\d+)|(\d+) threads?")
CONFIDENCE = "95%"
"""Coverage of the intervals of ``eval.measurement.pair``."""
EXAMPLE = "bytes <= 10 MB"


class Limit(Block):
    """The most that a model may cost or lose.

    Attributes:
        what: bytes, macs, parameters, p50_ms, loss (of the primary metric, against the teacher) or hours (of the
            search).
        most: In bytes, multiply-accumulates, weights, milliseconds, units of the metric, hours.
        batch: Of p50_ms: examples of a batch.
        threads: Of p50_ms: threads of one product.
        text: The line as it was written.
    """

    what: str
    most: float
    batch: int = 1
    threads: int = 1
    text: str = ""

    def __str__(self) -> str:
        return self.text


def limit_from_plain(given: Any) -> Limit:
    """Read a limit.

    Raises:
        ValueError: With what is allowed.

    Examples:
        >>> limit_from_plain("bytes <= 10 MB").most
        10000000.0
        >>> limit_from_plain("p50_ms <= 2 @ batch 8, 2 threads").threads
        2
    """
    if isinstance(given, Limit):
        return given
    match = LINE.fullmatch(given) if isinstance(given, str) else None
    if match is None:
        raise ValueError(f"got {shown(given)}, must be a line such as '{EXAMPLE}'")
    what, number, unit, conditions = match.groups()
    if what not in UNITS:
        raise ValueError(f"{shown(what)} cannot be limited{did_you_mean(what, UNITS)}")
    if unit not in UNITS[what]:
        allowed = ", ".join(filter(None, UNITS[what]))
        raise ValueError(f"{shown(unit)} is no unit of {what}; allowed: {allowed}, or none")
    if what in COSTS and not float(number):
        raise ValueError(f"got {shown(given)}, no model costs nothing; give a number above 0")
    found: dict[str, int] = {}
    for condition in re.split(r"\s*,\s*", conditions) if conditions else ():
        if what == "loss" and condition == CONFIDENCE:
            continue
        timed = CONDITION.fullmatch(condition) if what == "p50_ms" else None
        if timed is None or int(timed[1] or timed[2]) < 1:
            allowed = {"p50_ms": "batch 1, 1 thread", "loss": CONFIDENCE}.get(what, "nothing")
            raise ValueError(f"{shown(condition)} cannot stand after @ here; allowed: {allowed}")
        found["batch" if timed[1] else "threads"] = int(timed[1] or timed[2])
    return Limit(what=what, most=float(number) * UNITS[what][unit], text=" ".join(given.split()), **found)


LimitLine = Annotated[Limit, BeforeValidator(limit_from_plain), PlainSerializer(str)]
