"""How much memory the process holds that asks; no more is imported than that takes, as it would be counted too."""

from __future__ import annotations

import sys


def resident_bytes() -> int:
    """Return the resident memory of this process; where the system tells only the most it ever was, that."""
    return _status("VmRSS") or _most_ever()


def peak_bytes() -> int:
    """Return the most resident memory that this process held since its start, or since ``reset_peak``."""
    # What getrusage calls the peak is that of the parent process on Linux, where it was higher.
    return _status("VmHWM") or _most_ever()


def reset_peak() -> bool:
    """Let the high-water mark begin again at what is held now, and return whether the system could."""
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")  # proc(5)
    except OSError:
        return False
    return True


def _status(field: str) -> int:
    try:
        with open("/proc/self/status", encoding="utf-8") as file:
            return next((int(line.split()[1]) * 1024 for line in file if line.startswith(field)), 0)
    except OSError:
        return 0


def _most_ever() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
