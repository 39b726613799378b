"""A process that has loaded the toolkit once and forks for every command, so that a command starts in milliseconds.

    with Forker() as forker:
        ending = forker.run(["eval", "model", "--data", "data"], cwd=folder, seconds=30, megabytes=3000)

A forked command has its own working folder, environment, streams, and limits of time and memory. What is read when a
library is loaded (``OMP_NUM_THREADS``) is not read again: give ``fresh=True`` for a process of its own.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.interrupting import Interruption, arm
from tests.undrawn import blank

ROOT = Path(__file__).parents[1]
STREAMS = ("stdin", "stdout", "stderr")
PRELOADED = (
    "accelerate",
    "compress.certification.certifying",
    "compress.cli",
    "compress.distill.logits",
    "compress.engine.pipeline",
    "compress.export.check.verification",
    "compress.export.folder",
    "compress.export.runtime.answering",
    "compress.onnx_graph.build",
    "compress.student.shape_check",
    "compress.terminal.live_region",
    "eval.cost.onnx_macs",
    "eval.cost.product_count",
    "eval.kinds.classification",
    "eval.report.card",
    "eval.report.console",
    "eval.report.page",
    "eval.report.plots",
    "onnx",
    "onnxruntime",
    "scipy.stats",
    "teachers.training.loop",
    "torch._dynamo",
    "torch.onnx",
    "transformers.modeling_utils",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.bert.modeling_bert",
    "transformers.models.bert.tokenization_bert",
)
STOCK = """\
import sys
for name in list(sys.modules):
    if name.partition(".")[0] in ("compress", "teachers", "eval"):
        del sys.modules[name]
sys.modules.update(dict.fromkeys(("compress", "teachers", "eval")))
"""
"""Makes every import of this project an error."""


@dataclass(frozen=True)
class Call:
    """A command to run.

    Attributes:
        arguments: What stands after ``compress``; or a Python file, ending in ``.py``, and what stands after it.
        cwd: Its working folder.
        env: Variables to set.
        stdin: What it reads.
        seconds: After so long it is ended by SIGALRM, which nothing catches, as nothing catches SIGKILL.
        megabytes: How much address space it may take beyond what the loaded process has.
        fresh: Run it in a process that has loaded nothing.
        streams: What ``stdin``, ``stdout`` and ``stderr`` are: a file of the working folder, ``closed``, or ``broken``,
            a pipe that nobody reads.
        interrupt: After so many seconds it gets what Ctrl-C sends.
        interruption: What happens to it when it changes the disk; its clock stands still then.
        rendered: Whether pictures of reports are rendered.
    """

    arguments: Sequence[str]
    cwd: Path
    env: Mapping[str, str] | None = None
    stdin: bytes = b""
    seconds: float = 60
    megabytes: int = 3000
    fresh: bool = False
    streams: Mapping[str, str] | None = None
    interrupt: float | None = None
    interruption: Interruption | None = None
    rendered: bool = True


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

    def run(self, arguments: Sequence[str], **more: Any) -> Ending:
        """Run ``compress ARGUMENTS`` and return how it ended; see ``Call``."""
        return self.run_together([Call(arguments, **more)])[0]

    def program(self, code: str, *arguments: str, cwd: Path, stock: bool = False) -> str:
        """Run Python code in a process that has loaded the libraries, and return what it printed.

        Args:
            code: The program.
            arguments: What ``sys.argv`` holds after its name.
            cwd: Its working folder, in which it is written.
            stock: Whether this project cannot be imported, so that it shows what transformers does by itself.
        """
        file = cwd / "program.py"
        file.write_text((STOCK if stock else "") + code, encoding="utf-8")
        ending = self.run([str(file), *arguments], cwd=cwd)
        assert ending.code == 0, ending.err
        return ending.out

    def run_together(self, calls: Sequence[Call]) -> list[Ending]:
        """Run commands that start at the same time, and return how each ended; all take as long as the longest."""
        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            files = [{name: str(Path(folder) / f"{number}-{name}") for name in STREAMS} for number in range(len(calls))]
            for call, names in zip(calls, files, strict=True):
                Path(names["stdin"]).write_bytes(call.stdin)
            requests = [
                {
                    "arguments": list(call.arguments),
                    "cwd": str(call.cwd),
                    "env": dict(call.env or {}),
                    "seconds": call.seconds,
                    "bytes": call.megabytes * 2**20,
                    "fresh": call.fresh,
                    "interrupt": call.interrupt,
                    "interruption": call.interruption and asdict(call.interruption),
                    "rendered": call.rendered,
                    **names,
                    **(call.streams or {}),
                }
                for call, names in zip(calls, files, strict=True)
            ]
            answers = self._ask(requests)
            said = [
                [_said(call, names, name) for name in STREAMS[1:]] for call, names in zip(calls, files, strict=True)
            ]
        seconds = time.perf_counter() - started
        return [
            Ending(answer["code"], *texts, seconds, answer["megabytes"])
            for answer, texts in zip(answers, said, strict=True)
        ]

    def _ask(self, request: Any) -> Any:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        line = self._server.stdout.readline()
        assert line, "the forking process has died"
        return json.loads(line)


def _said(call: Call, names: Mapping[str, str], name: str) -> str:
    return "" if name in (call.streams or {}) else Path(names[name]).read_text("utf-8", errors="replace")


def _serve() -> None:
    import importlib

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    gc.disable()
    for name in PRELOADED:
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    gc.freeze()  # or each command would look through all that is loaded, and so copy the memory of it
    gc.enable()
    for line in sys.stdin:
        request = json.loads(line)
        answers.write(json.dumps("ready" if request is None else _all_forked(request)) + "\n")
        answers.flush()


def _all_forked(requests: list[dict[str, Any]]) -> list[dict[str, float]]:
    children = [_forked(request) for request in requests]
    interrupting = [
        threading.Timer(request["interrupt"], os.kill, (child, signal.SIGINT))
        for request, child in zip(requests, children, strict=True)
        if request["interrupt"]
    ]
    for timer in interrupting:
        timer.start()
    answers = []
    for child in children:
        _, status, usage = os.wait4(child, 0)
        answers.append({"code": os.waitstatus_to_exitcode(status), "megabytes": usage.ru_maxrss / 1024})
    for timer in interrupting:
        timer.cancel()
    return answers


def _forked(request: dict[str, Any]) -> int:
    child = os.fork()
    if not child:
        code = 99
        try:
            _limit(request)
            code = _command(request)
        except BaseException:  # as Python ends a program
            with contextlib.suppress(OSError):
                traceback.print_exc()
        finally:
            os._exit(_flushed(code))
    return child


def _flushed(code: int) -> int:
    """Return the exit code as Python gives it once it has flushed the streams."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            return 120
    return code


def _limit(request: dict[str, Any]) -> None:
    """Give this process its folder, streams, environment, and limits."""
    os.setpgid(0, 0)
    os.chdir(request["cwd"])
    os.environ.update(request["env"])
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        _give_stream(number, name, request[name])
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background job ignores
    signal.setitimer(signal.ITIMER_REAL, request["seconds"])
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + request["bytes"]
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _give_stream(number: int, name: str, what: str) -> None:
    """Open a standard stream, as a shell does, and make Python's object of it, as Python does."""
    if what == "closed":
        os.close(number)
        stream = None
    else:
        opened = _broken_pipe() if what == "broken" else os.open(what, os.O_RDWR | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
        encoding = os.environ.get("PYTHONIOENCODING", "utf-8")
        errors = "backslashreplace" if name == "stderr" else "strict"
        stream = open(  # noqa: SIM115 (the process ends with it)
            number, "w" if number else "r", 1 if number == 2 else -1, encoding, errors, closefd=False
        )
    setattr(sys, name, stream)
    setattr(sys, f"__{name}__", stream)


def _broken_pipe() -> int:
    read, written = os.pipe()
    os.close(read)
    return written


def _command(request: dict[str, Any]) -> int:
    if request["fresh"]:
        os.environ.pop("OMP_NUM_THREADS", None)
        os.environ.update(request["env"])
        program = [] if request["arguments"][0].endswith(".py") else ["-m", "compress"]
        os.execv(sys.executable, [sys.executable, *program, *request["arguments"]])
    if request["arguments"][0].endswith(".py"):
        return _program(request["arguments"])
    from compress.cli import main

    if not request["rendered"]:
        from eval.report import pictures

        pictures.render = blank
    if request["interruption"]:
        arm(Interruption(**request["interruption"]))
    return main(request["arguments"])


def _program(arguments: list[str]) -> int:
    sys.argv = arguments
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0
    return 0


if __name__ == "__main__":
    _serve()
