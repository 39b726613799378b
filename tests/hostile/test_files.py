"""What commands write: whole or not at all, readable by others, through links and streams, beside what stands there."""

from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

from tests.forking import Ending
from tests.hostile.case import Case, table
from tests.hostile.damage import Damage, device, link, write

EVAL = "eval model --data data --no-latency"
EXPORT = "export model --out out"
FULL_DISK = "the disk is full; free some space"
NULL, FULL = 3, 7
"""Memory devices of Linux: one that takes everything, and one that is always full."""


def folder(name: str) -> Damage:
    return lambda scene: (scene / name).mkdir(parents=True)


def stays_a_link(name: str, target: str) -> Callable[[Path, Ending], None]:
    def look(scene: Path, _: Ending) -> None:
        assert (scene / name).is_symlink()
        assert (scene / name).readlink() == Path(target)
        assert (scene / target).exists()

    return look


def holds_a_report(name: str) -> Callable[[Path, Ending], None]:
    def look(scene: Path, _: Ending) -> None:
        text = (scene / name).read_text(encoding="utf-8")
        assert text.startswith("<!doctype html>") if name.endswith("html") else json.loads(text)[0]["scores"]

    return look


def all_of(*looks: Callable[[Path, Ending], None]) -> Callable[[Path, Ending], None]:
    def look(scene: Path, ending: Ending) -> None:
        for each in looks:
            each(scene, ending)

    return look


def nothing_is_left(scene: Path, _: Ending) -> None:
    left = [path for path in scene.rglob("*") if path.name.endswith((".writing", ".old", ".working"))]
    assert not left, left


def readable_by_others(name: str) -> Callable[[Path, Ending], None]:
    def look(scene: Path, _: Ending) -> None:
        modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (scene / name).rglob("*") if path.is_file()}
        assert modes
        assert all(mode & 0o444 == 0o444 for mode in modes.values()), modes

    return look


def fifo(name: str) -> Damage:
    """Make a FIFO, and a reader that keeps what comes through it in a file of the same name and ``.read``."""

    def act(scene: Path) -> None:
        os.mkfifo(scene / name)

        def read() -> None:
            (scene / f"{name}.read").write_bytes((scene / name).read_bytes())

        threading.Thread(target=read, daemon=True).start()

    return act


def still_a_fifo(name: str) -> Callable[[Path, Ending], None]:
    def look(scene: Path, _: Ending) -> None:
        assert stat.S_ISFIFO((scene / name).stat().st_mode)

    return look


def still_a_device(name: str) -> Callable[[Path, Ending], None]:
    def look(scene: Path, _: Ending) -> None:
        assert stat.S_ISCHR((scene / name).stat().st_mode)

    return look


def printed(start: str) -> Callable[[Path, Ending], None]:
    def look(_: Path, ending: Ending) -> None:
        assert ending.out.lstrip().startswith(start), ending.out[:200]

    return look


REPORTS = {"--json": "x.json", "--html": "x.html"}
CASES = [
    *(
        case
        for option, name in REPORTS.items()
        for case in (
            Case(
                f"{option} to the null device",
                f"{EVAL} {option} null",
                device("null", NULL),
                code=0,
                after=all_of(still_a_device("null"), nothing_is_left),
            ),
            Case(
                f"{option} to standard output",
                f"{EVAL} {option} /proc/self/fd/1",
                code=0,
                after=printed("[" if option == "--json" else "<!doctype"),
            ),
            Case(
                f"{option} to a full device",
                f"{EVAL} {option} full",
                device("full", FULL),
                code=1,
                says=FULL_DISK,
                after=still_a_device("full"),
            ),
            Case(
                f"{option} to a FIFO",
                f"{EVAL} {option} {name}",
                fifo(name),
                code=0,
                changes=(f"{name}.read",),
                after=still_a_fifo(name),
            ),
            Case(
                f"{option} to a link",
                f"{EVAL} {option} {name}",
                (write("elsewhere/kept", "old"), link(name, "elsewhere/kept")),
                code=0,
                changes=("elsewhere",),
                after=stays_a_link(name, "elsewhere/kept"),
            ),
            Case(
                f"{option} to a link to what is not there",
                f"{EVAL} {option} {name}",
                (folder("elsewhere"), link(name, "elsewhere/new")),
                code=0,
                changes=("elsewhere",),
                after=stays_a_link(name, "elsewhere/new"),
            ),
            Case(
                f"{option} over a file",
                f"{EVAL} {option} {name}",
                write(name, "old"),
                code=0,
                changes=(name,),
                after=all_of(holds_a_report(name), nothing_is_left),
            ),
            Case(f"{option} to a folder", f"{EVAL} {option} {name}", folder(name), code=(1, 2), says=name),
            Case(f"{option} into no folder", f"{EVAL} {option} nowhere/{name}", says="nowhere"),
            Case(
                f"{option} into a file",
                f"{EVAL} {option} file/{name}",
                write("file", "kept"),
                says=rf"file/{name}: its folder does not exist",
            ),
        )
    ),
    Case("an export can be read by others", EXPORT, code=0, after=readable_by_others("out")),
    Case(
        "a run's results can be read by others",
        "run recipe.yaml --out out",
        code=0,
        after=all_of(readable_by_others("out"), readable_by_others("home"), nothing_is_left),
    ),
    Case(
        "an export into a link",
        "export model --out linked",
        (lambda scene: (scene / "export").rename(scene / "elsewhere"), link("linked", "elsewhere")),
        code=0,
        changes=("elsewhere",),
        after=all_of(stays_a_link("linked", "elsewhere"), nothing_is_left),
    ),
    Case("an export into a file", "export model --out file", write("file", "kept"), code=(1, 2), says="file"),
    Case("an export below a file", "export model --out file/out", write("file", "kept"), code=(1, 2), says="file"),
    Case(
        "an export to a device",
        "export model --out null",
        device("null", NULL),
        code=(1, 2),
        says="null",
        after=still_a_device("null"),
    ),
    Case("an export to a name that is too long", f"export model --out out/{'x' * 300}", code=(1, 2), says="xxx"),
    Case("a report to a name that is too long", f"{EVAL} --json {'x' * 300}", code=(1, 2), says="xxx"),
    Case("a run into a file", "run recipe.yaml --out file", write("file", "kept"), code=(1, 2), says="file"),
    Case("a run below a file", "run recipe.yaml --out file/out", write("file", "kept"), code=(1, 2), says="file"),
    Case(
        "a run to a device",
        "run recipe.yaml --out null",
        device("null", NULL),
        code=(1, 2),
        says="null",
        after=still_a_device("null"),
    ),
    Case(
        "a home that is a file",
        "run recipe.yaml --out out",
        write("file", "kept"),
        env={"COMPRESS_HOME": "file"},
        code=(0, 1, 2),
    ),
    Case(
        "a new recipe onto a device",
        "init --force --task classification --data data --teacher model --trained --layers 2 --int8 --out full",
        device("full", FULL),
        code=1,
        says=FULL_DISK,
        after=still_a_device("full"),
    ),
    Case(
        "a new recipe over a folder",
        "init --force --task classification --data data --teacher model --trained --layers 2 --int8 --out data",
        code=(1, 2),
        says="data",
    ),
]
test_case = table(CASES, quick=10)
