"""Which number format a forward pass takes: what a recipe says, what the process was launched with, or the device's."""

from __future__ import annotations

import os
from typing import Literal

from eval.errors import UserError, did_you_mean

Precision = Literal["auto", "fp32", "bf16", "fp16"]
"""What a recipe may say; see ``Training.precision``."""
LAUNCHED = "ACCELERATE_MIXED_PRECISION"
"""What ``accelerate launch --mixed_precision`` sets."""
ALLOWED = ("no", "bf16", "fp16")


def launched_precision() -> str:
    """Return the precision that the process was launched with; empty if it says none.

    Raises:
        UserError: If it is none of those that a training knows.
    """
    asked = os.environ.get(LAUNCHED, "")
    if asked and asked not in ALLOWED:
        raise UserError(f"{LAUNCHED}: got {asked!r}{did_you_mean(asked, ALLOWED)}; allowed: {', '.join(ALLOWED)}")
    return asked


def mixed_precision(precision: Precision) -> str:
    """Return what accelerate calls a precision: ``no``, ``bf16`` or ``fp16``; see ``Training.precision``.

    Raises:
        UserError: As ``launched_precision`` does.
    """
    import torch

    asked = launched_precision()
    if precision != "auto":
        return "no" if precision == "fp32" else precision
    if asked:
        return asked
    return "bf16" if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else "no"
