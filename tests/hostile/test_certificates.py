"""Certificates from strangers: damaged, swollen, of other types; whatever they hold, a check ends with a word."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

from eval.certificate.archive import pack, unpack
from eval.certificate.canonical import canonical
from eval.certificate.contents import MAIN, MEMBERS, ROWS
from tests.certificates import certificate
from tests.hostile.case import Case, table
from tests.hostile.damage import Damage

RECHECK = "recheck model.cert --level 1"


def cert(change=lambda data: data) -> Damage:
    """Write a certificate, changed as bytes."""

    def act(scene: Path) -> None:
        (scene / "model.cert").write_bytes(change(certificate(scene / "certified").to_bytes()))

    return act


def member(name: str, change) -> Damage:
    """Change the bytes of a member."""

    def edit(data: bytes) -> bytes:
        members = unpack(data, MEMBERS)
        return pack(members | {name: change(members[name])})

    return cert(edit)


def values(*path: str, value) -> Damage:
    """Set a value of ``certificate.json``."""

    def edit(data: bytes) -> bytes:
        top = json.loads(data)
        node = top
        for name in path[:-1]:
            node = node[name]
        node[path[-1]] = value
        return canonical(top)

    return member(MAIN, edit)


def zipped(names, data: bytes = b"{}", how: int = zipfile.ZIP_STORED) -> Damage:
    """Write a zip with these members."""

    def edit(_: bytes) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", how) as archive:
            for name in names:
                archive.writestr(name, data)
        return buffer.getvalue()

    return cert(edit)


def large(data: bytes) -> bytes:
    """Say in the directory of the zip that a member has four gigabytes."""
    place = data.rindex(b"PK\x01\x02")
    return data[: place + 20] + b"\xfe\xff\xff\xff\xfe\xff\xff\xff" + data[place + 28 :]


BOMB = bytes(60_000_000)
CASES = [
    Case("no file", RECHECK, says="model.cert: there is no such file"),
    Case("a folder", RECHECK, lambda scene: (scene / "model.cert").mkdir(), says="there is no such file"),
    Case("an empty file", RECHECK, cert(lambda _: b""), says="INVALID: .*is no zip", code=9),
    Case("no zip", RECHECK, cert(lambda _: b"%PDF" * 99), says="INVALID: .*is no zip", code=9),
    Case("cut in the middle", RECHECK, cert(lambda data: data[: len(data) // 2]), says="INVALID", code=9),
    Case("bytes after the end", RECHECK, cert(lambda data: data + b"more"), says="INVALID", code=9),
    Case("bytes before the start", RECHECK, cert(lambda data: b"more" + data), says="INVALID", code=9),
    Case("a size of four gigabytes", RECHECK, cert(large), says="INVALID", code=9, megabytes=500),
    Case("a bomb", RECHECK, zipped(sorted(MEMBERS), BOMB, zipfile.ZIP_DEFLATED), says="compressed members", code=9,
         megabytes=500, seconds=20),
    Case("a thousand members", RECHECK, zipped(map(str, range(1000))), says="INVALID: .*holds", code=9),
    Case("a path out of the folder", RECHECK, zipped(["../../evil.json"]), says="holds '../../evil.json'", code=9),
    Case("another text in the place of JSON", RECHECK, member(MAIN, lambda _: b"\xff\xfe"), says="INVALID", code=9),
    Case("too deep", RECHECK, member(MAIN, lambda _: b"[" * 100_000), says="nested too deeply", code=9),
    Case("a number of thousands of digits", RECHECK, member(MAIN, lambda _: b"9" * 9000), says="INVALID", code=9),
    Case("an infinity", RECHECK, member(ROWS, lambda data: data.replace(b"0.75", b"1e999", 1)), says="INVALID", code=9),
    Case("another type", RECHECK, values("fixed", "claim", "margin", value=[]), says="margin: must be", code=9),
    Case("a huge whole number", RECHECK, values("candidate", "bytes", value=10**30), says="is too large", code=9),
    Case("an unknown kind of task", RECHECK, values("task", "kind", value="\u001b[31m"), says="INVALID", code=9),
    Case("no parts of the data", RECHECK, values("data", "parts", value={}), says="INVALID: data: has", code=9),
    Case("a level there is not", "recheck model.cert --level 5", cert(), says="level"),
    Case("a key that is not there", "recheck model.cert --level 1 --key none.pem", cert(), says="none.pem", code=8),
    Case("a model that is not there", "recheck model.cert --level 2 --model none", cert(), says="none: is no folder"),
    Case("data that is not there", "recheck model.cert --data none", cert(), says="none"),
    Case("all is well", RECHECK, cert(), code=0),
    Case("certify: no run", "certify data", says="no recipe.yaml here"),
]  # fmt: skip
test_case = table(CASES, quick=12)
