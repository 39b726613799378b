"""``python -m compress`` is the command ``compress``."""

from __future__ import annotations

import sys

from compress.cli import main

if __name__ == "__main__":
    sys.exit(main())
