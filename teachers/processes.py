"""One process or several that train together, as ``torchrun`` and ``accelerate launch`` start them."""

from __future__ import annotations

import os


def is_first() -> bool:
    """Whether this is the process that writes and speaks, of one or several."""
    return int(os.environ.get("RANK", "0")) == 0


def how_many() -> int:
    """Return how many processes train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def wait_for_all() -> None:
    """Wait until all have come so far; nothing where they have not begun to train together."""
    import torch

    if torch.distributed.is_initialized():
        torch.distributed.barrier()
