"""Checks that options of several commands share."""

from __future__ import annotations

import math

import typer


def finite(value: float | None) -> float | None:
    """Return a number that an option was given; NaN and infinities, which bounds let through, are refused."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"got {value}, must be a finite number")
    return value
