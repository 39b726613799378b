"""The number format of a training's forward pass, and float32 wherever the network is scored, saved or exported."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator

import torch
from torch import nn

LAUNCHED = "ACCELERATE_MIXED_PRECISION"
"""What ``accelerate launch --mixed_precision`` sets: no, bf16 or fp16."""


def mixed_precision(precision: str) -> str:
    """Return what accelerate calls a precision: ``no``, ``bf16`` or ``fp16``; see ``teachers.config.Training``."""
    if precision != "auto":
        return "no" if precision == "fp32" else precision
    asked = os.environ.get(LAUNCHED, "")
    if asked in ("no", "bf16", "fp16"):
        return asked
    return "bf16" if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else "no"


@contextlib.contextmanager
def in_float32(parts: Iterable[nn.Module]) -> Iterator[None]:
    """Run modules that accelerate prepared for mixed precision as they were before."""
    prepared = [vars(part) for part in parts if "_original_forward" in vars(part)]
    own = [values["forward"] for values in prepared]
    for values in prepared:
        values["forward"] = values["_original_forward"]
    try:
        yield
    finally:
        for values, forward in zip(prepared, own, strict=True):
            values["forward"] = forward


def back_to_float32(parts: Iterable[nn.Module]) -> None:
    """Take away what accelerate gave modules for mixed precision, of which nobody knows later."""
    for part in parts:
        original = vars(part).pop("_original_forward", None)
        if original is not None:
            del part.forward
            if getattr(original, "__func__", None) is not type(part).forward:
                vars(part)["forward"] = original
