"""``export.json``: what an export folder holds, whose it is, and whether its files are as they were written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compress.export.targets.library import ABOVE, FIRST_TARGET, ExportError, Library
from compress.export.targets.target_registry import library_of
from eval.files.json_text import JsonError, read_json

FORMAT = 1
"""Version of the export folder; a folder of a later version is refused."""
MANIFEST = "export.json"
FILES = ("tokenizer.json", "encoder.json")
"""What prediction needs beside the network and the manifest, which holds the size and digest of each file."""
REQUIRED = ("name", "task", "files")
KINDS: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "task": (dict,),
    "files": (dict,),
    "target": (str,),
    "scheme": (str,),
    "source": (dict,),
    "int8": (dict,),
    "gate": (dict,),
    "tuned": (dict,),
    "chosen_on": (dict,),
    "precision": (str,),
    "tries": (list,),
    "speed": (int, float),
    "one_token": (list,),
    "max_tokens": (int,),
    "one_of": (dict,),
}
"""Fields of the manifest, as JSON values."""


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return ``export.json`` of an export folder whose files are all there and whole, and which can be run here.

    Raises:
        ExportError: With everything that is wrong with the folder, or if nothing on this machine runs it.
    """
    manifest = whole_manifest(folder)
    library_for(folder, manifest)
    return manifest


def tasks_of(folder: Path) -> tuple[str, ...]:
    """Return the tasks of an export of several, which each are a folder in it; none for an export of one.

    Raises:
        ExportError: If ``export.json`` is missing or damaged.
    """
    return tuple(_manifest(folder).get("tasks") or ())


def asked_of(folder: Path) -> tuple[str, bool]:
    """Return what an export reads, of several tasks the first: the kind of task, and whether examples are pairs.

    Raises:
        ExportError: As ``read_manifest`` does.
    """
    task = read_manifest(folder.joinpath(*tasks_of(folder)[:1]))["task"]
    return task["kind"], task["pair"]


def whole_manifest(folder: Path) -> dict[str, Any]:
    """Return ``export.json`` of an export folder whose files are all there and whole.

    Raises:
        ExportError: With everything that is wrong with the folder.
    """
    file, manifest = folder / MANIFEST, _manifest(folder)
    if tasks := manifest.get("tasks"):
        names = ", ".join(map(str, tasks))
        raise ExportError(f"{folder}: holds several tasks; name the folder of one: {folder}/NAME, of {names}")
    wrong = [
        key
        for key, kinds in KINDS.items()
        if not isinstance(manifest.get(key), kinds if key in REQUIRED else (*kinds, type(None)))
    ]
    if wrong:
        raise ExportError(f"{file}: {' and '.join(wrong)} missing or of another type; export it again")
    files, library = manifest["files"], _library(manifest)
    wanted = () if library is None else (*library.files, library.tokenizer, *FILES[1:])
    found = () if library is None else library.files_of(path.name for path in folder.iterdir())
    problems = [f"does not list {name}" for name in dict.fromkeys((*wanted, *found)) if name not in files]
    below = library is None or "/" in library.files[0]
    for name, known in files.items():
        above = name in wanted and name.startswith(ABOVE)
        place = (folder / ABOVE, name.removeprefix(ABOVE)) if above else (folder, name)
        problems += wrong_file(*place, known, below)
    if library is not None and not problems:
        problems += library.problems(folder)
    if not problems and manifest.get("digest", "") not in ("", with_digest(manifest)["digest"]):
        problems.append(f"{MANIFEST} was changed")  # earlier versions wrote none
    if problems:
        kind = "export" if library is not None else f"export for {target_of(manifest)[:60]!r}"
        raise ExportError(f"{folder}: damaged {kind}: {'; '.join(problems)}; copy or export it again")
    return manifest


def library_for(folder: Path, manifest: Mapping[str, Any]) -> Library:
    """Return what runs an export.

    Raises:
        ExportError: If nothing on this machine does.
    """
    target, library = target_of(manifest), _library(manifest)
    if library is None:
        raise ExportError(
            f"{folder}: an export for {target[:60]!r}, which this cannot run; README.md there says what can"
        )
    return library


def no_export(folder: Path) -> str:
    """Return the sentence for a folder without ``export.json``, with the exports one or two levels below it."""
    if not folder.exists():
        return f"{folder}: there is no such folder"
    levels = (sorted(str(each.parent) for each in folder.glob(f"{deep}{MANIFEST}")) for deep in ("*/", "*/*/"))
    there = next(filter(None, levels), [])
    cure = f"its exports are {', '.join(there)}" if there else "an export is a folder that 'compress export' wrote"
    return f"{folder}: no {MANIFEST} here; {cure}"


def _manifest(folder: Path) -> dict[str, Any]:
    """Return what ``export.json`` says, of a format that is known here."""
    file = folder / MANIFEST
    if not file.is_file():
        raise ExportError(no_export(folder))
    try:
        manifest = read_json(file)
    except JsonError as error:
        raise ExportError(f"{file}: {error}; copy or export it again") from error
    if not isinstance(manifest, dict) or "format" not in manifest:
        raise ExportError(f"{file}: not the manifest of an export")
    if manifest["format"] != FORMAT:
        found = manifest["format"]
        raise ExportError(
            f"{file}: format {repr(found)[:60]}; this reader knows format {FORMAT}, so use a matching version"
        )
    return manifest


def _library(manifest: Mapping[str, Any]) -> Library | None:
    """Return what runs an export, if it is installed; of one of several tasks with the files in the folder above."""
    library = library_of(target_of(manifest))
    return library.of_one_task() if library is not None and manifest.get("one_of") else library


def target_of(manifest: Mapping[str, Any]) -> str:
    """Return what an export was made for: ``onnx`` where its ``export.json`` does not say."""
    return str(manifest.get("target", FIRST_TARGET))


def with_digest(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest, as in JSON, with the digest of the rest of it."""
    values = json.loads(json.dumps({key: value for key, value in manifest.items() if key != "digest"}))
    text = json.dumps(values, sort_keys=True)
    return {**values, "digest": hashlib.sha256(text.encode()).hexdigest()}


def wrong_file(folder: Path, name: str, known: Any, below: bool = False) -> list[str]:
    """Return what is wrong with a file of a folder, by the size and digest that are known of it.

    Args:
        folder: Where it lies.
        name: Its name.
        known: Its size and digest.
        below: Whether it may lie in a folder within.
    """
    parts = name.split("/") if below else [name]
    if any(not part or part != Path(part).name or "\\" in part or part == ".." for part in parts):
        return [f"{name!r} is no plain file name"]
    file = folder / name
    if not file.is_file():
        return [f"{name} is missing"]
    size, digest = (known.get("bytes"), known.get("sha256")) if isinstance(known, dict) else (None, None)
    if not isinstance(size, int) or not isinstance(digest, str):
        return [f"{name} has no size and digest"]
    if file.stat().st_size != size:
        return [f"{name} has {file.stat().st_size} bytes instead of {size}"]
    return [] if sha256(file) == digest else [f"{name} was changed"]


def sha256(file: Path) -> str:
    """Return the SHA-256 of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
