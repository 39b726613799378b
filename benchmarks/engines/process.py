"""The side of ``benchmarks.inference``: an engine's process, started, asked and ended."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engines.engine import Array, Engine, Files
from benchmarks.engines.environment import EngineError
from benchmarks.engines.worker import path_of

ROOT = Path(__file__).parents[2]
ANSWER_WITHIN = 900
"""Seconds in which a process has to answer; to compile takes minutes on a busy machine."""


class Process:
    """The worker of an engine; it prepares the engine's files, or loads them and answers.

    Attributes:
        told: What it said when it was ready.
        megabytes: Its peak memory so far.
    """

    def __init__(self, engine: Engine, files: Files, threads: int | None = None) -> None:
        python = engine.environment.python()
        command = [python, "-W", "ignore", "-m", "benchmarks.engines.worker", path_of(engine), str(files.folder)]
        number = [] if threads is None else [str(threads)]
        settings = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(threads or 1), "HF_HUB_OFFLINE": "1"}
        self.log = files.folder / f"{engine.name}.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *number],
                cwd=ROOT,
                env=os.environ | settings,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.megabytes = 0.0
        self.told = self._read()

    def run(self, case: str) -> float:
        """Return the seconds that the case takes, measured in the process."""
        return float(self._ask(case, 1)["seconds"])

    def logits(self, case: str) -> Array:
        """Return the logits of a case, ``[rows, classes]``."""
        return np.array(self._ask(case, 0)["logits"])

    def close(self) -> None:
        """End the process."""
        self.process.communicate()

    def _ask(self, case: str, repeat: int) -> dict[str, Any]:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"case": case, "repeat": repeat}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        late = threading.Timer(ANSWER_WITHIN, self.process.kill)
        late.start()
        line = self.process.stdout.readline()
        late.cancel()
        if not line:
            raise self._ended()
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            self.close()
            raise EngineError(found["error"])
        self.megabytes = found["megabytes"]
        return found

    def _ended(self) -> EngineError:
        self.close()
        last = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        return EngineError(": ".join([f"its process ended with {self.process.returncode}", *last]))


def prepare(engine: Engine, files: Files) -> None:
    """Install an engine's packages and write its files, as far as they are not there.

    Raises:
        EngineError: If there is no sense in it on this processor, or it cannot be installed or prepared.
    """
    if reason := engine.absent():
        raise EngineError(reason)
    engine.environment.python()
    if type(engine).prepare is not Engine.prepare:
        Process(engine, files).close()


def start(engine: Engine, files: Files, threads: int) -> tuple[Process, float]:
    """Load an engine that was prepared; return its process, and the seconds from start to first prediction.

    Raises:
        EngineError: If it cannot be loaded.
    """
    begun = time.perf_counter()
    return Process(engine, files, threads), time.perf_counter() - begun
