"""Peak memory of a piece of code in a process of its own, where nothing loaded earlier can hide it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from eval.errors import CompressError

PROGRAM = """
import json, sys
from eval.cost.own_memory import peak_bytes, reset_peak, resident_bytes

_baseline = resident_bytes()

def mark():
    global _baseline
    reset_peak()
    _baseline = resident_bytes()

_out, _code, args = sys.argv[1], sys.argv[2], sys.argv[3:]
sys.argv = ["-c", *args]
exec(compile(_code, "<measured>", "exec"), globals())
with open(_out, "w") as _file:
    json.dump([_baseline, peak_bytes()], _file)
"""


@dataclass(frozen=True)
class PeakMemory:
    """Resident memory of a fresh process.

    Attributes:
        bytes: Most that the process held from the measured part on; from its start where the system cannot reset that.
        baseline_bytes: What it held before the measured part: an empty interpreter, or what ``mark()`` saw.
    """

    bytes: int
    baseline_bytes: int

    @property
    def rise_bytes(self) -> int:
        """What the measured part added at its worst moment."""
        return max(0, self.bytes - self.baseline_bytes)


def peak_memory(code: str, *args: str, timeout: float = 600) -> PeakMemory:
    """Run Python code in a fresh interpreter and return its peak resident memory.

    The code sees ``args`` (a list of texts) and ``mark()``, which moves the baseline: call it after the imports to
    measure the model without its libraries.

    Args:
        code: Python source.
        args: Texts for the code, such as a folder.
        timeout: Seconds after which the process is ended.

    Raises:
        CompressError: The code failed or took too long; the message ends with what it last wrote to stderr.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "memory.json"
        command = [sys.executable, "-c", PROGRAM, str(out), code, *args]
        try:
            done = subprocess.run(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=timeout, env=dict(os.environ)
            )
        except subprocess.TimeoutExpired as error:
            raise CompressError(f"peak_memory: the measured code took more than {timeout:g} seconds") from error
        if done.returncode or not out.exists():
            last = done.stderr.decode(errors="replace").strip().splitlines()[-5:]
            raise CompressError("\n".join([f"peak_memory: the measured code ended with {done.returncode}", *last]))
        baseline, peak = json.loads(out.read_text(encoding="utf-8"))
    return PeakMemory(bytes=max(peak, baseline), baseline_bytes=baseline)
