"""Memory of a training on a processor: what one optimizer step frees stays with the process, for the next one.

glibc gives large blocks back to the kernel as soon as they are freed, and the next step asks for as many again, which
the kernel fills with zeros page by page. Logits over a vocabulary and the states of a long batch are such blocks.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
from collections.abc import Iterator

TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4
"""Parameters of ``mallopt``, by their numbers in malloc.h."""
KEEP = {MMAP_MAX: 0, TRIM_THRESHOLD: 2**31 - 1}
"""No block is mapped by itself, and the heap does not shrink."""
USUAL = {MMAP_MAX: 65_536, MMAP_THRESHOLD: 32 * 2**20, TRIM_THRESHOLD: 64 * 2**20}
"""What glibc comes to by itself once a block of 32 MiB was freed."""
SETTINGS = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")
"""How variables begin with which a user sets what is done with memory, or takes another library for it."""


@contextlib.contextmanager
def freed_memory_kept(device: str) -> Iterator[None]:
    """Keep what is freed until the end, and give it back to the system then.

    Nothing is changed on a GPU, without glibc, and where the user has set such variables.

    Args:
        device: Type of the device that trains, such as ``cpu``.
    """
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
