"""What a model folder says beside its weights, as digests of content: saving it again unchanged gives the same ones."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from eval.errors import UserError
from eval.files.typed_json import read_values
from teachers.folder_task import BESIDE
from teachers.sentence_folder import COVERED as SENTENCE_FOLDER
from teachers.taskmodel import TaskModel, save_taskmodel

COVERED = (
    *("config.json", "structure.json", "task.json", "adapted.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"),
    *("vocab.txt", "vocab.json", "merges.txt", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model"),
    *SENTENCE_FOLDER,
)
"""Files that decide what a model answers, besides its weights; a page beside them may be edited freely."""
IGNORED: dict[str, tuple[str, ...]] = {
    "config.json": ("_name_or_path", "transformers_version", "dtype", "torch_dtype"),
    "task.json": (BESIDE,),
    "tokenizer.json": ("padding", "truncation"),
    "tokenizer_config.json": ("backend", "is_local", "local_files_only", "name_or_path", "transformers_version"),
}
"""What libraries write anew whenever they save, and what no answer of ours depends on."""


def file_digests(folder: Path) -> dict[str, str]:
    """Return the digest of what stands in each covered file of a folder, by the file's name."""
    return {name: _digest(folder / name) for name in COVERED if (folder / name).is_file()}


def digests_of(model: TaskModel, write: Callable[[Any, Path, bool], None] | None = None) -> dict[str, str]:
    """Return what ``file_digests`` gives for the folder that ``save_taskmodel`` would write.

    Args:
        model: Any network; its weights are not looked at.
        write: As for ``save_taskmodel``.
    """
    with tempfile.TemporaryDirectory() as folder:
        save_taskmodel(model, folder, write, weights=False)
        return file_digests(Path(folder))


def config_values(model: TaskModel) -> dict[str, Any]:
    """Return what a network's config says, as in JSON, without what depends on the library or on how it was loaded."""
    values = json.loads(json.dumps(model.model.config.to_dict(), default=str))
    return {key: value for key, value in values.items() if key not in (*IGNORED["config.json"], "architectures")}


def has_config(folder: Path, model: TaskModel) -> bool:
    """Whether the config in a folder is that of a network, as far as both say something."""
    try:
        found = read_values(folder / "config.json", "make it anew")
    except UserError:
        return False
    return isinstance(found, dict) and all(
        found.get(key, value) == value for key, value in config_values(model).items()
    )


def differences(folder: Path, recorded: Mapping[str, str], record: str) -> list[str]:
    """Return a sentence for each covered file of a folder that is not the one that was recorded.

    Args:
        folder: A model folder.
        recorded: What ``file_digests`` gave when it was written; nothing if that was not recorded.
        record: Name of the file with the record.
    """
    found = file_digests(folder) if recorded else {}
    problems = []
    for name in sorted(found.keys() | recorded.keys()):
        if name not in found:
            problems.append(f"{folder / name}: is missing, and {record} records it")
        elif name not in recorded:
            problems.append(f"{folder / name}: was added later; {record} does not record it")
        elif found[name] != recorded[name]:
            problems.append(f"{folder / name}: is not the file that {record} records; it was changed or mixed up")
    return problems


def _digest(file: Path) -> str:
    content = file.read_bytes()
    if file.suffix == ".json":
        try:
            values = json.loads(content)
        except (ValueError, RecursionError):
            values = None  # damaged, so its bytes are what there is
        if isinstance(values, dict):
            kept = {key: value for key, value in values.items() if key not in IGNORED.get(file.name, ())}
            content = json.dumps(kept, sort_keys=True).encode()
    return hashlib.sha256(content).hexdigest()
