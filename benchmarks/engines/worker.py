"""The process of one engine: ``python -m benchmarks.engines.worker MODULE:CLASS FOLDER THREADS``.

It prepares the engine's files if they are not there, or with ``THREADS`` loads them and answers requests, a line of
JSON each: ``{"case": …, "repeat": 3}`` with ``{"seconds": …, "megabytes": …}``, the seconds of one pass over the case
around the engine's own calls; ``{"case": …, "repeat": 0}`` with ``{"logits": …}`` as well. Whatever the engine's
libraries print goes to the errors.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module, metadata
from pathlib import Path
from typing import IO, Any

from benchmarks.engines.engine import Engine, Files, size_of
from eval.cost.own_memory import peak_bytes
from eval.one_line import first_line

FIRST = "1 x 32"
"""The case whose first prediction ends the loading."""


def engine_of(path: str) -> Engine:
    """Return the engine of ``MODULE:CLASS``."""
    module, _, name = path.partition(":")
    made: Engine = getattr(import_module(module), name)()
    return made


def path_of(engine: Engine) -> str:
    """Return what ``engine_of`` reads."""
    return f"{type(engine).__module__}:{type(engine).__name__}"


def prepare(engine: Engine, files: Files) -> None:
    """Write the engine's files, unless they are there."""
    from eval.files.writing import atomic_folder

    place = place_of(engine, files)
    if not place.is_dir():
        with atomic_folder(place, "the engine's files") as beside:
            engine.prepare(files, beside)


def place_of(engine: Engine, files: Files) -> Path:
    """Return the folder of the engine's own files."""
    return files.folder / "engines" / engine.name


def serve(engine: Engine, files: Files, threads: int, asked: IO[str], answers: IO[str]) -> None:
    """Load the engine, say so, and answer requests."""
    place = place_of(engine, files)
    run = engine.load(files, place, threads)
    engine.answer(run, files.batches(FIRST))
    versions = {name: metadata.version(name) for name in engine.packages}
    size = size_of(engine.network(files, place))
    _say(answers, {"bytes": size, "versions": versions})
    read: dict[str, Any] = {}
    for line in asked:
        request = json.loads(line)
        case, repeat = request["case"], request["repeat"]
        if case not in read:
            read[case] = files.batches(case)
        if not repeat:
            found = engine.answer(run, read[case])
            _say(answers, {"logits": [row for logits in found for row in logits.tolist()]})
            continue
        begun = time.perf_counter()
        for _ in range(repeat):
            engine.answer(run, read[case])
        _say(answers, {"seconds": (time.perf_counter() - begun) / repeat})


def _say(answers: IO[str], found: dict[str, Any]) -> None:
    print(json.dumps(found | {"megabytes": peak_bytes() / 1e6}), file=answers, flush=True)


def main() -> None:
    """Prepare or serve; what goes wrong is an answer too."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        try:
            engine, files = engine_of(sys.argv[1]), Files(Path(sys.argv[2]))
            if len(sys.argv) > 3:
                serve(engine, files, int(sys.argv[3]), sys.stdin, answers)
            else:
                prepare(engine, files)
                _say(answers, {})
        except Exception as error:
            _say(answers, {"error": f"{type(error).__name__}: {first_line(error)}"})
            raise


if __name__ == "__main__":
    main()
