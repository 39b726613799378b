"""The table of hostile cases: a command, what is wrong with its input, and how the command must end.

To add a case, add a line to ``CASES`` of a file ``tests/hostile/test_SUBJECT.py`` (which ends with
``test_case = table(CASES)``):

    Case("a tensor is missing", "eval model --data data", tensors("model/model.safetensors", without_a_layer),
         says=r"missing .*encoder\\.layer\\.1")

A command runs in a folder of its own, the *scene*, which holds ``data/`` (train, validation, test .jsonl),
``model/`` (a tiny fine-tuned BERT, with ``task.json``), ``artifact/`` (what a recipe made of it), ``export/`` (its ONNX
export), ``recipe.yaml`` (data, model -> 2 layers, distilled) and ``home/`` (``COMPRESS_HOME``). Whatever the case,
the command must not print a traceback or "unexpected error", must keep to its limits of time and memory, must end with
the code the case names, and must leave every file as it was outside of ``out`` and ``home``.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.forking import Ending, Forker
from tests.hostile.damage import Damage

LONGEST_LINE, LONGEST = 3_000, 30_000
"""Characters of a line on standard error, and of all it says."""


@dataclass(frozen=True)
class Case:
    """One hostile input.

    Attributes:
        name: Unique in its table.
        command: What stands after ``compress``, as in a shell; paths are relative to the scene. Or a Python file, such
            as ``export/predict.py``, and what stands after it.
        damage: What makes the scene hostile; one function of its folder or several.
        says: Matches what stands on standard error (searched; ``.`` matches line ends too).
        code: The exit code, or several that are right: 2 for a user's error, 1 for what is not, 0 if all is well.
        after: Looks at the scene and at the ending, and asserts what else must hold.
        changes: Files or folders of the scene, besides ``out`` and ``home``, that the command may change.
        env: Variables.
        stdin: What the command reads.
        streams: What its standard streams are instead of files: see ``Forker.run``.
        interrupt: Seconds after which it gets what Ctrl-C sends.
        seconds: How long it may take, in a process that is loaded.
        megabytes: Address space it may take beyond what is loaded.
        fresh: Run in a process that has loaded nothing (six seconds).
        slow: Not by default.
    """

    name: str
    command: str
    damage: Damage | Sequence[Damage] = ()
    says: str = ""
    code: int | tuple[int, ...] = 2
    after: Callable[[Path, Ending], None] | None = None
    changes: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    stdin: bytes = b""
    streams: dict[str, str] = field(default_factory=dict)
    interrupt: float | None = None
    seconds: float = 60
    megabytes: int = 3000
    fresh: bool = False
    slow: bool = False


def table(cases: Iterable[Case], quick: int | None = None) -> Any:
    """Return the test of a table of cases.

    Args:
        cases: The cases.
        quick: How many are run by default, evenly spread over those that are not slow; by default all of these.
    """
    cases = list(cases)
    fast = [case.name for case in cases if not case.slow]
    step = max(1.0, len(fast) / (quick or len(fast) or 1))
    chosen = {fast[int(place * step)] for place in range(min(len(fast), quick or len(fast)))}
    names = [case.name for case in cases]
    assert len(set(names)) == len(names), sorted({name for name in names if names.count(name) > 1})
    rows = [pytest.param(case, id=case.name, marks=() if case.name in chosen else pytest.mark.slow) for case in cases]

    @pytest.mark.parametrize("case", rows)
    def test_case(case: Case, pristine: Path, forker: Forker, tmp_path: Path) -> None:
        check(case, pristine, forker, tmp_path / "scene")

    return test_case


def check(case: Case, pristine: Path, forker: Forker, scene: Path) -> None:
    """Run one case in a copy of the scene and assert that it ended as it must."""
    shutil.copytree(pristine, scene)
    for act in [case.damage] if callable(case.damage) else case.damage:
        act(scene)
    before = _digests(scene, case.changes)
    ending = forker.run(
        shlex.split(case.command),
        cwd=scene,
        env={"COMPRESS_HOME": str(scene / "home"), **case.env},
        stdin=case.stdin,
        streams=case.streams,
        interrupt=case.interrupt,
        seconds=case.seconds,
        megabytes=case.megabytes,
        fresh=case.fresh,
    )
    said = f"exit {ending.code} after {ending.seconds:.1f} s\n{ending.err[-4000:]}\n{ending.out[-1000:]}"
    assert ending.code >= 0, f"ended by signal {-ending.code} (14: took too long)\n{said}"
    assert "Traceback (most recent call last)" not in ending.out + ending.err, said
    assert "unexpected error" not in ending.err, said
    assert ending.code in (case.code if isinstance(case.code, tuple) else (case.code,)), said
    assert re.search(case.says, ending.err, re.DOTALL), f"does not say {case.says!r}: {said}"
    unheard = "stderr" in case.streams or "broken" in case.streams.values()
    assert ending.code == 0 or ending.err.strip() or unheard, "says nothing"
    assert len(ending.err) <= LONGEST, f"{len(ending.err)} characters of messages\n{said}"
    assert all(len(line) <= LONGEST_LINE for line in ending.err.splitlines()), said
    after = _digests(scene, case.changes)
    assert after == before, f"changed: {sorted(set(before.items()) ^ set(after.items()))[:5]}\n{said}"
    if case.after is not None:
        case.after(scene, ending)


def _digests(scene: Path, changes: tuple[str, ...]) -> dict[str, str]:
    """Return the digest of every file that the command must leave alone, by its name; links by their target."""
    found: dict[str, str] = {}
    for path in sorted(scene.rglob("*")):
        name = path.relative_to(scene).as_posix()
        if any(name == free or name.startswith(f"{free}/") for free in ("out", "home", *changes)):
            continue
        if path.is_symlink():
            found[name] = str(path.readlink())
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found
