"""Throughput of ``compress predict`` on a file: one thread, one process of all threads, a process for each core.

    COMPRESS_DATA=… python -m benchmarks.processes EXPORT [--lines 20000] [--rounds 6] [--fill]

Every run is a command of its own, and its start counts. They take turns, round after round. Sentences are those of
``benchmarks.serving``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.archive import keep
from benchmarks.markdown_table import markdown_table
from benchmarks.results import DOCS, fill
from benchmarks.rounds import timed_in_rounds
from benchmarks.serving import sentences
from eval.cost.machine import in_one_line, machine, usable_cores
from eval.cost.timing import paired_ratio

NAME = "processes"
ONE = "one thread"


def ways(cores: int) -> dict[str, tuple[int, int]]:
    """Return the number of processes and of threads of each, by what a table calls it."""
    return {
        ONE: (1, 1),
        f"one process of {cores} threads": (1, cores),
        f"{cores} processes of one thread": (cores, 1),
    }


def timed(export: str, file: Path, processes: int, threads: int) -> float:
    """Return the seconds of a command that answers a file."""
    command = [sys.executable, "-m", "compress", "predict", export, "--file", str(file)]
    command += ["--processes", str(processes), "--out", str(file.with_suffix(".answers"))]
    began = time.perf_counter()
    subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": str(threads)}, check=True, capture_output=True)
    return time.perf_counter() - began


def report(found: Any) -> str:
    """Return the table of what was kept, and what it was measured on."""
    rows = [["run as", "lines/s", "speedup [95%]"]]
    for name, seconds in found["seconds"].items():
        ratio = paired_ratio(found["seconds"][ONE], seconds)
        gain = "" if name == ONE else f"{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"
        rows.append([name, f"{found['lines'] / median(seconds):,.0f}", gain])
    rounds, size = len(found["seconds"][ONE]), f"{found['megabytes']:.1f} MB"
    told = f"{found['lines']:,} lines, {rounds} rounds; {found['scheme']}, {size}"
    return "\n\n".join([markdown_table(rows), f"{told}; {in_one_line(found['machine'])}; commit {found['commit']}."])


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("export")
    parser.add_argument("--lines", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--fill", action="store_true", help="keep the record, and write docs/results/inference.md")
    given = parser.parse_args()
    known = json.loads((Path(given.export) / "export.json").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "lines.txt"
        file.write_text("\n".join(islice(cycle(sentences()), given.lines)) + "\n", encoding="utf-8")
        runs = {name: partial(timed, given.export, file, *how) for name, how in ways(usable_cores()).items()}
        found: dict[str, Any] = {"seconds": timed_in_rounds(runs, given.rounds), "lines": given.lines}
    size = sum(path.stat().st_size for path in Path(given.export).glob("model.*"))
    found |= {"scheme": known["scheme"], "megabytes": size / 1e6}
    print(report(found | {"machine": machine(), "commit": "now"}))
    if given.fill:
        fill(DOCS / "inference.md", NAME, report(keep(NAME, found)))


if __name__ == "__main__":
    main()
