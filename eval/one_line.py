"""What an error of a foreign library says, in one line.

Like the other parts of ``predict.py`` it imports nothing of the toolkit.
"""

from __future__ import annotations


def first_line(error: Exception) -> str:
    """Return what an error says, in one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
