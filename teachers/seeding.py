"""Torch's chance within a block, from a seed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw as from a seed, on the CPU and on the accelerator; torch's random state is afterwards as it was before.

    Args:
        seed: Any 64 bits.
    """
    import torch

    with torch.random.fork_rng():
        if torch.accelerator.is_available():
            torch.manual_seed(seed)
        else:  # torch.manual_seed would format the stack of its callers for every kind of accelerator, for later
            torch.default_generator.manual_seed(seed)
        yield
