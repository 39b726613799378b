"""Memory of a training on a processor: what one optimizer step frees stays with the process, for the next one.

glibc gives large blocks back to the kernel as soon as they are freed, and the next step asks for as many again, which
the kernel fills with zeros page by page. Logits over a vocabulary and the states of a long batch are such blocks.

oneDNN, which multiplies in bf16, keeps code for the last 1,024 shapes. Every length of a batch is some twenty of them,
and what they keep lies between the freed blocks, so that no next step can join those: a training grows with every new
length. Few shapes are kept here; code for a shape is made in less time than is noticed beside a step.
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
SHAPES_KEPT = 64
"""Shapes that oneDNN keeps code for: those of about three lengths of a batch."""
SHAPES_VARIABLES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "DNNL_PRIMITIVE_CACHE_CAPACITY")
"""Variables that say how many, read at oneDNN's first multiplication in a process."""
SETTINGS = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")
"""How variables begin with which a user sets what is done with memory, or takes another library for it."""


@contextlib.contextmanager
def freed_memory_kept(device: str) -> Iterator[None]:
    """Keep what is freed until the end, and give it back to the system then; keep code for few shapes from here on.

    Nothing is changed on a GPU, where the user has set such variables, and of the allocator without glibc.

    Args:
        device: Type of the device that trains, such as ``cpu``.
    """
    if device == "cpu" and not any(name in os.environ for name in SHAPES_VARIABLES):
        os.environ[SHAPES_VARIABLES[0]] = str(SHAPES_KEPT)
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
