"""A process that has loaded the toolkit once and forks for every command, so that a command starts in milliseconds.

    with Forker() as forker:
        ending = forker.run(["eval", "model", "--data", "data"], cwd=folder, seconds=30, megabytes=3000)

A forked command has its own working folder, environment, streams, and limits of time and memory. What is read when a
library is loaded (``OMP_NUM_THREADS``) is not read again: give ``fresh=True`` for a process of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PRELOADED = (
    "accelerate",
    "compress.cli",
    "compress.export.onnx",
    "compress.export.runtime",
    "compress.pipeline",
    "scipy.stats",
    "torch._dynamo",
    "transformers.modeling_utils",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.bert.modeling_bert",
    "transformers.models.bert.tokenization_bert",
)


@dataclass(frozen=True)
class Ending:
    """How a command ended.

    Attributes:
        code: Exit code; minus the number of the signal that ended it, if one did.
        out: What it wrote to standard output.
        err: What it wrote to standard error.
        seconds: How long it took.
        megabytes: Its peak resident memory.
    """

    code: int
    out: str
    err: str
    seconds: float
    megabytes: float


class Forker:
    """Keeps the loaded process; ``run`` is one command."""

    def __enter__(self) -> Forker:
        """Start the process and wait until it has loaded what commands need."""
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.forking"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
            text=True,
        )
        assert self._ask(None) == "ready"
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        with self._server:  # closes its streams, which ends it, and waits
            pass

    def run(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        seconds: float = 60,
        megabytes: int = 3000,
        fresh: bool = False,
    ) -> Ending:
        """Run ``compress ARGUMENTS`` and return how it ended.

        Args:
            arguments: What stands after ``compress``.
            cwd: Its working folder.
            env: Variables to set.
            stdin: What it reads.
            seconds: After so long it is ended by SIGALRM.
            megabytes: How much address space it may take beyond what the loaded process has.
            fresh: Run it in a process that has loaded nothing.
        """
        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            names = {name: str(Path(folder) / name) for name in ("stdin", "stdout", "stderr")}
            Path(names["stdin"]).write_bytes(stdin)
            request = {
                "arguments": list(arguments),
                "cwd": str(cwd),
                "env": dict(env or {}),
                "seconds": seconds,
                "bytes": megabytes * 2**20,
                "fresh": fresh,
                **names,
            }
            answer = self._ask(request)
            streams = [Path(names[name]).read_text("utf-8", errors="replace") for name in ("stdout", "stderr")]
        return Ending(answer["code"], *streams, time.perf_counter() - started, answer["megabytes"])

    def _ask(self, request: Any) -> Any:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        line = self._server.stdout.readline()
        assert line, "the forking process has died"
        return json.loads(line)


def _serve() -> None:
    import importlib

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    for name in PRELOADED:
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    for line in sys.stdin:
        request = json.loads(line)
        answers.write(json.dumps("ready" if request is None else _forked(request)) + "\n")
        answers.flush()


def _forked(request: dict[str, Any]) -> dict[str, float]:
    child = os.fork()
    if not child:
        code = 99
        try:
            _limit(request)
            code = _command(request)
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
    _, status, usage = os.wait4(child, 0)
    return {"code": os.waitstatus_to_exitcode(status), "megabytes": usage.ru_maxrss / 1024}


def _limit(request: dict[str, Any]) -> None:
    """Give this process its folder, streams, environment, and limits."""
    os.setpgid(0, 0)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.dup2(os.open(request[name], os.O_RDWR | os.O_CREAT), number)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 (the process ends with it)
    os.chdir(request["cwd"])
    os.environ.update(request["env"])
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, request["seconds"])
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + request["bytes"]
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _command(request: dict[str, Any]) -> int:
    if request["fresh"]:
        os.environ.pop("OMP_NUM_THREADS", None)
        os.environ.update(request["env"])
        os.execv(sys.executable, [sys.executable, "-m", "compress", *request["arguments"]])
    from compress.cli import main

    return main(request["arguments"])


if __name__ == "__main__":
    _serve()
