"""Cost of serving an export: time from process start to the first prediction, memory, and throughput on a long input.

    python -m benchmarks.serving EXPORT [--lines 100000] [--runs 7]

Each run is a separate process with only this package, numpy, tokenizers and the export's library. Sentences are
SST-2's if COMPRESS_DATA is set, else synthetic with similar lengths.
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
from typing import Any

from eval.cost.machine import machine
from eval.cost.own_memory import resident_bytes
from eval.cost.timing import median_interval

FIRST = """
import json, sys
from eval.cost.own_memory import peak_bytes
from compress.export.runtime.answering import Runtime
model = Runtime(sys.argv[1])
print(json.dumps(model.predict([sys.argv[2]]).answers), flush=True)
print(peak_bytes())
"""
"""Program that makes one prediction and prints its peak memory in bytes."""
PARTS = 5
"""Number of times that a long run reports its memory."""


def first_prediction(export: str, text: str) -> tuple[float, float]:
    """Return the seconds from the start of a process to its first prediction, and its peak memory in MB."""
    start = time.perf_counter()
    command = [sys.executable, "-c", FIRST, export, text]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        json.loads(process.stdout.readline())
        seconds = time.perf_counter() - start
        return seconds, int(process.stdout.readline()) / 1e6


def stream(export: str, texts: Sequence[str], lines: int) -> list[tuple[int, float, float]]:
    """Predict this many lines; return for each part their number, predictions per second so far, and resident MB."""
    from compress.export.runtime.answering import Runtime

    found, start = [], time.perf_counter()
    for number, _ in enumerate(Runtime(export).stream(islice(cycle(texts), lines)), start=1):
        if number % max(1, lines // PARTS) == 0:
            found.append((number, number / (time.perf_counter() - start), resident_bytes() / 1e6))
    return found


def sentences() -> list[str]:
    """Return SST-2's training sentences, or synthetic ones."""
    from benchmarks.inference import the_task

    return [str(example["text"]) for example in the_task().train]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("export")
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--texts", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.texts:  # the measured process, which must not import torch
        texts = json.loads(given.texts.read_text(encoding="utf-8"))
        print(json.dumps(stream(given.export, texts, given.lines)))
        return
    import tempfile

    texts = sentences()
    runs = [first_prediction(given.export, texts[0]) for _ in range(given.runs)]
    seconds, megabytes = (list(values) for values in zip(*runs, strict=True))
    found = median_interval(seconds)
    interval = f"{found.low:.2f} to {found.high:.2f}, an interval of {found.coverage:.0%}, {found.rounds} processes"
    print(f"first prediction after {found.value:.2f} s ({interval}), {max(megabytes):.0f} MB")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "texts.json"
        file.write_text(json.dumps(texts), encoding="utf-8")
        command = [sys.executable, "-m", "benchmarks.serving", given.export, "--lines", str(given.lines)]
        done = subprocess.run([*command, "--texts", str(file)], capture_output=True, text=True, check=True)
    rows: list[Any] = json.loads(done.stdout)
    for number, rate, resident in rows:
        print(f"{number:>9,} lines  {rate:8,.0f} per second  {resident:6.0f} MB")
    print(json.dumps(machine()))


if __name__ == "__main__":
    main()
