"""How torch's threads wait for each other: not by spinning for long, which on a busy machine keeps others from working.

libgomp, which torch's wheels bring, lets a thread spin for milliseconds before it sleeps. If another process holds a
core, all threads of each product wait so for the one that was there. Spinning for some tens of microseconds bridges the
time between two products, and then the core is free.
"""

from __future__ import annotations

import os
import sys

WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Variables that say how threads wait; one that the user has set is the last word."""
BRIEF = {"GOMP_SPINCOUNT": "2000", "KMP_BLOCKTIME": "1"}
"""Rounds that a thread of libgomp spins; milliseconds of one of libomp. Each library reads its own."""


def wait_briefly() -> None:
    """Set how threads wait, before torch is loaded, unless the user has said it."""
    if "torch" not in sys.modules and not told():
        os.environ.update(BRIEF)


def told() -> dict[str, str]:
    """Return what the environment says of how threads wait."""
    return {name: os.environ[name] for name in WAITING if name in os.environ}


def described() -> str:
    """Return in words how torch's threads wait."""
    found = told()
    if not found:
        return "as OpenMP likes: threads that wait spin for milliseconds, slow beside other processes"
    said = ", ".join(f"{name}={value}" for name, value in found.items())
    return f"{said} (set by compress: threads that wait soon sleep)" if found == BRIEF else f"{said} (as you set it)"
