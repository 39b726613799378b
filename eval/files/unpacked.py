"""A file as bytes, unpacked where its name says that it is packed.

Like the other parts of ``predict.py`` it imports nothing of the toolkit.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import IO, cast


def open_unpacked(path: Path) -> IO[bytes]:
    """Open a file to be read as bytes; one whose name ends in ``.gz`` is unpacked while it is read."""
    return cast("IO[bytes]", gzip.open(path, "rb")) if path.suffix.lower() == ".gz" else path.open("rb")
