"""One process or several that train together, as ``torchrun`` and ``accelerate launch`` start them."""

from __future__ import annotations

import os
from typing import Any

from eval.errors import UserError


def is_first() -> bool:
    """Whether this is the process that writes and speaks, of one or several."""
    return _number("RANK", 0) == 0


def how_many() -> int:
    """Return how many processes train together."""
    return _number("WORLD_SIZE", 1)


def wait_for_all() -> None:
    """Wait until all have come so far; nothing where they have not begun to train together."""
    import torch

    if torch.distributed.is_initialized():
        torch.distributed.barrier()


def accelerator(mixed_precision: str = "no", **settings: Any) -> Any:
    """Return a new ``Accelerator`` on the GPU or the processor, whatever one before it was set to.

    Args:
        mixed_precision: As accelerate calls it.
        settings: Others of ``Accelerator``.

    Raises:
        UserError: If the launcher has set something else than whole numbers.
    """
    import torch
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state()
    check_launcher()
    return Accelerator(cpu=not torch.cuda.is_available(), mixed_precision=mixed_precision, **settings)


def check_launcher() -> None:
    """Look at what a launcher has set before accelerate reads it.

    Raises:
        UserError: If it is no whole number.
    """
    for variable in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        _number(variable, 0)


def _number(variable: str, alone: int) -> int:
    """Return what a launcher has set.

    Raises:
        UserError: If it is no whole number.
    """
    given = os.environ.get(variable)
    if given is None:
        return alone
    if not (given.isascii() and given.isdecimal() and len(given) < 10):
        raise UserError(
            f"{variable}: got {given!r}, must be a whole number, as torchrun sets it; unset it for one process"
        )
    return int(given)
