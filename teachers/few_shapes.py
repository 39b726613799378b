"""Memory of products in bf16 on a processor: code is kept for few shapes, not for every length of a batch.

oneDNN keeps code for the last 1,024 shapes, and torch what it prepared for the last 1,024 calls of it. Every length of
a batch is some twenty of each, and what they keep lies between the blocks that a step frees, so that no next step can
join those: a process grows with every new length. Code for a shape is made in less time than is noticed beside a step.
"""

from __future__ import annotations

import os

SHAPES_KEPT = 64
"""Shapes that code is kept for: those of about three lengths of a batch."""
SHAPES_VARIABLES = (("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "DNNL_PRIMITIVE_CACHE_CAPACITY"), ("LRU_CACHE_CAPACITY",))
"""Variables that say how many, by each of their names: of oneDNN, and of torch. They are read at the first
multiplication in a process."""


def keep_few_shapes(device: str) -> None:
    """Let this process keep code for few shapes, unless the user has said for how many.

    Args:
        device: Type of the device that multiplies; nothing is changed but for ``cpu``.
    """
    for names in SHAPES_VARIABLES if device == "cpu" else ():
        if not any(name in os.environ for name in names):
            os.environ[names[0]] = str(SHAPES_KEPT)
