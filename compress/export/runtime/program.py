"""The command line of an export: texts in, JSON lines out; the last part of its ``predict.py``."""

from __future__ import annotations

import argparse
import json
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import IO

from compress.export.runtime.answering import Runtime
from compress.export.runtime.given_example import file_items, refuse_file_name
from compress.export.runtime.manifest import asked_of
from compress.export.runtime.many_processes import json_lines, process_count
from compress.export.targets.library import ExportError
from eval.examples import ROLES
from eval.files.full_disk import full_disk
from eval.files.streams import guard_streams
from eval.files.unpacked import open_unpacked

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells give it."""


def main(folder: Path, arguments: Sequence[str] | None = None) -> int:
    """Answer texts from the command line: one JSON object a line, in the order of the texts.

    Args:
        folder: The export.
        arguments: Without the name of the program; None takes those of the process.

    Returns:
        The exit code: 0; 2 after a user's error, which is told on standard error; 130 after Ctrl-C; 1 if the answers
        could not be written.
    """
    if problem := guard_streams():
        sys.stderr.write(f"{problem}\n")
        return 1
    parser = argparse.ArgumentParser(description="Answer texts: one JSON object a line, in the order of the texts.")
    parser.add_argument("text", nargs="*", help="a line (see README.md); without any, standard input is read")
    parser.add_argument("--file", type=Path, help="a UTF-8 file, a text a line; .jsonl: a JSON object; no table")
    parser.add_argument("--batch-size", type=_count, default=None, help="most inputs of a batch (as many as are fast)")
    parser.add_argument("--threads", type=_count, default=None, help="threads (the physical cores)")
    parser.add_argument("--processes", type=_processes, default=1, help="of one thread each; auto: one a core (1)")
    parser.add_argument("--speed", type=float, default=None, help="early exits: 0 runs all layers, 1 one (as exported)")
    parser.add_argument("--prompt-name", choices=ROLES, default=None, help="embedders: what all texts are")
    parser.add_argument(
        "--generate", type=_count, default=None, help="write so many tokens after each text (causal-lm)"
    )
    parser.add_argument("--seed", type=int, default=None, help="with --generate: draw tokens (the likeliest each time)")
    parser.add_argument("--top-k", type=int, default=0, help="with --seed: from so many likeliest tokens (0: all)")
    parser.add_argument("--top-p", type=float, default=1.0, help="with --seed: from those of so much probability (1)")
    parser.add_argument("--temperature", type=float, default=1.0, help="with --seed: what scores are divided by (1)")
    given = parser.parse_args(arguments)
    if given.text and given.file:
        parser.error("give texts or --file, not both")
    if given.threads and given.processes > 1:
        parser.error("give --threads or --processes, not both: each process has one thread")
    try:
        refuse_file_name(given.text)
        with open_unpacked(given.file) if given.file else nullcontext(sys.stdin.buffer) as stream:
            lines = given.text or read_lines(stream)
            if given.file:
                lines = file_items(str(given.file), lines, *asked_of(folder))
            if given.generate:
                how = {name: getattr(given, name) for name in ("seed", "top_k", "top_p", "temperature")}
                runtime = Runtime(folder, given.threads)
                for line in lines:
                    prompt = line if isinstance(line, str) else line["text"]
                    written = runtime.generate(prompt, given.generate, **how)
                    sys.stdout.buffer.write(json.dumps({"text": written}, ensure_ascii=False).encode() + b"\n")
                sys.stdout.buffer.flush()
                return 0
            settings = {name: getattr(given, name) for name in ("threads", "batch_size", "speed", "prompt_name")}
            sys.stdout.buffer.writelines(json_lines(folder, lines, given.processes, **settings))
            sys.stdout.buffer.flush()
        return 0
    except BrokenPipeError:  # whoever read the output has gone
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        return INTERRUPTED
    except (ExportError, OSError) as error:
        full = full_disk(error, then="give the same command again")
        sys.stderr.write(f"{full or error}\n")
        return 1 if full else 2


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text)):
        raise argparse.ArgumentTypeError(f"got {text[:20]!r}, must be a whole number of 1 or more")
    return int(text)


def _processes(text: str) -> int:
    try:
        return process_count(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def read_lines(stream: IO[bytes]) -> Iterator[str]:
    r"""Yield the lines of UTF-8 text; only ``\n`` and ``\r\n`` end a line.

    Raises:
        ExportError: If a line is not UTF-8, or a packed file ends before its end.
    """
    number = 0
    try:
        for number, raw in enumerate(stream, start=1):
            yield raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ExportError(f"line {number}: not UTF-8 text (byte 0x{error.object[error.start]:02x})") from error
    except (EOFError, zlib.error) as error:
        raise ExportError(f"after line {number}: the packed file is damaged ({error}); copy it again") from error
