"""What an export costs to serve: time from the start of a process to its first answer, memory, and an endless stream.

    python -m benchmarks.serving EXPORT [--lines 100000] [--runs 5]

Each run is a process of its own with this package, numpy, tokenizers and the export's library alone. Sentences are
SST-2's where COMPRESS_DATA is set, else made up with lengths like theirs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.own_memory import memory
from eval.cost.machine import machine

FIRST = """
import json, sys
from compress.export.runtime import Runtime
model = Runtime(sys.argv[1])
print(json.dumps(model.predict([sys.argv[2]]).answers), flush=True)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
"""From nothing to one answer, and the most memory that it took, in KiB."""
PARTS = 5
"""How often a stream tells its memory."""


def first_answer(export: str, text: str) -> tuple[float, float]:
    """Return the seconds from the start of a process to its first answer, and the MB that it took."""
    start = time.perf_counter()
    command = [sys.executable, "-c", FIRST, export, text]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        json.loads(process.stdout.readline())
        seconds = time.perf_counter() - start
        return seconds, int(process.stdout.readline()) * 1024 / 1e6


def stream(export: str, texts: Sequence[str], lines: int) -> list[tuple[int, float, float]]:
    """Answer so many lines; return for each part of them how many, answers a second so far, and MB resident."""
    from compress.export.runtime import Runtime

    found, start = [], time.perf_counter()
    for number, _ in enumerate(Runtime(export).stream(islice(cycle(texts), lines)), start=1):
        if number % max(1, lines // PARTS) == 0:
            found.append((number, number / (time.perf_counter() - start), memory()))
    return found


def sentences() -> list[str]:
    """Return SST-2's training sentences, or made-up ones."""
    from benchmarks.inference import the_task

    return [str(example["text"]) for example in the_task().train]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("export")
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--texts", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.texts:  # the process of the stream, which must not hold torch
        texts = json.loads(given.texts.read_text(encoding="utf-8"))
        print(json.dumps(stream(given.export, texts, given.lines)))
        return
    import tempfile

    texts = sentences()
    runs = [first_answer(given.export, texts[0]) for _ in range(given.runs)]
    seconds, megabytes = (list(values) for values in zip(*runs, strict=True))
    spread = f"{min(seconds):.2f} to {max(seconds):.2f}"
    print(f"first answer after {median(seconds):.2f} s ({spread}), {max(megabytes):.0f} MB")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "texts.json"
        file.write_text(json.dumps(texts), encoding="utf-8")
        command = [sys.executable, "-m", "benchmarks.serving", given.export, "--lines", str(given.lines)]
        done = subprocess.run([*command, "--texts", str(file)], capture_output=True, text=True, check=True)
    rows: list[Any] = json.loads(done.stdout)
    for number, rate, resident in rows:
        print(f"{number:>9,} lines  {rate:8,.0f} a second  {resident:6.0f} MB")
    print(json.dumps(machine()))


if __name__ == "__main__":
    main()
