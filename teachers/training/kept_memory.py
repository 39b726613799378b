"""Memory of a training on a processor: what one optimizer step frees stays with the process, for the next one.

glibc gives large blocks back to the kernel as soon as they are freed, and the next step asks for as many again, which
the kernel fills with zeros page by page. Logits over a vocabulary and the states of a long batch are such blocks.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import platform
from collections.abc import Iterator

from eval.cost.machine import available_bytes
from eval.cost.own_memory import resident_bytes
from teachers.few_shapes import keep_few_shapes

logger = logging.getLogger("teachers.training.kept_memory")

TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4
"""Parameters of ``mallopt``, by their numbers in malloc.h."""
KEEP = {MMAP_MAX: 0, TRIM_THRESHOLD: 2**31 - 1}
"""No block is mapped by itself, and the heap does not shrink."""
USUAL = {MMAP_MAX: 65_536, MMAP_THRESHOLD: 32 * 2**20, TRIM_THRESHOLD: 64 * 2**20}
"""What glibc comes to by itself once a block of 32 MiB was freed."""
GROWTH = 1.5
"""How many times as much as after its longest batch a training comes to hold. What later ones of other lengths free
fits less and less exactly what the next ask for (100 batches of 60 to 256 tokens, after one of 256)."""
SETTINGS = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")
"""How variables begin with which a user sets what is done with memory, or takes another library for it."""


@contextlib.contextmanager
def freed_memory_kept(device: str) -> Iterator[None]:
    """Keep what is freed until the end, and give it back to the system then; keep code for few shapes from here on.

    Nothing is changed on a GPU, where the user has set such variables, and of the allocator without glibc.

    Args:
        device: Type of the device that trains, such as ``cpu``.
    """
    keep_few_shapes(device)
    told = any(name.startswith(SETTINGS) for name in os.environ)
    if device != "cpu" or told or platform.libc_ver()[0] != "glibc":
        yield
        return
    glibc = ctypes.CDLL(None)
    for parameter, value in KEEP.items():
        glibc.mallopt(parameter, value)
    try:
        yield
    finally:
        for parameter, value in USUAL.items():
            glibc.mallopt(parameter, value)
        glibc.malloc_trim(0)


def warn_if_short(name: str, device: str, pieces: int) -> None:
    """Warn if a training may come to need more memory than there is; a system then ends it without a word.

    Args:
        name: What is trained; its longest batch has just been learned.
        device: Type of the device that trains, such as ``cpu``; others say themselves that their memory is full.
        pieces: Pieces into which a batch is cut.
    """
    left, held = available_bytes(), resident_bytes()
    if device == "cpu" and left is not None and GROWTH * held > held + left:
        logger.warning(
            "%s: its longest batch took %.1f GB of memory, of %.1f that this process can have; if the system ends it, "
            "training: {gradient_accumulation_steps: %d} learns the same with less",
            name,
            held / 1e9,
            (held + left) / 1e9,
            2 * pieces,
        )
