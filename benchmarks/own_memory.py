"""How much memory the process holds that asks."""

from __future__ import annotations

from pathlib import Path


def memory(field: str = "VmRSS") -> float:
    """Return the resident memory of this process in MB (10^6 bytes), or the most it ever was (``VmHWM``)."""
    # What getrusage calls the peak is that of the parent process, where it was higher.
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(field))) * 1024 / 1e6
