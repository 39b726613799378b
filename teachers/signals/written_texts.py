"""The texts that a teacher writes for sources, by beam search: computed once, kept on disk, resumed line by line."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from eval.encoding import TextEncoder
from eval.errors import UserError
from eval.files.home import home
from eval.files.writing import exclusive
from eval.inference import batches_for
from eval.progress.stages import counted
from eval.task import Examples
from teachers.signals.model_teacher import ModelTeacher
from teachers.taskmodel import TaskModel

logger = logging.getLogger("teachers.signals.written_texts")

VERSION = 1
"""Raised when the same teacher and sources give other texts."""
FILE = "texts.jsonl"
BATCH, MOST_TOKENS = 64, 4096
"""Most sources, and tokens of sources, that are read at once; more on a GPU, see ``batches_for``."""


def written_texts(
    teacher: ModelTeacher, examples: Examples, beams: int, length_penalty: float, several: bool = False
) -> list[list[str]]:
    """Return the texts that a teacher writes for each example, the best first.

    Each batch is appended to a file as soon as it is written, so that an interrupted call goes on where it stopped.

    Args:
        teacher: A network that writes.
        examples: The sources.
        beams: Beginnings that the search keeps; 1 takes the likeliest token each time.
        length_penalty: As in ``TaskSpec``.
        several: Whether all texts that the search found are wanted, of each source up to ``beams``.

    Raises:
        UserError: If a line of the file is damaged.
    """
    task = teacher.model.task.model_copy(update={"beams": beams, "length_penalty": length_penalty})
    model = replace(teacher.model, task=task)
    asked = [VERSION, teacher.digest, sources_digest(examples), beams, length_penalty, several]
    key = hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:32]
    folder = (teacher.cache or home() / "signals") / f"texts-{key}"
    with exclusive(folder):
        folder.mkdir(parents=True, exist_ok=True)
        found = _kept(folder / FILE)
        if len(found) < len(examples):
            logger.info("%s writes %d texts, %d of them are there", teacher.model.name, len(examples), len(found))
            _write(folder / FILE, model, examples, found, several)
    return [found[row] for row in range(len(examples))]


def sources_digest(examples: Examples) -> str:
    """Recognises the sources; what the right texts are does not matter."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(json.dumps(example["source"], ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()


def _write(file: Path, model: TaskModel, examples: Examples, found: dict[int, list[str]], several: bool) -> None:
    encoder = model.encoder
    features = encoder.encode([{"source": example["source"]} for example in examples])
    lengths = [len(feature.ids) for feature in features]
    with model.on_gpu(), file.open("a", encoding="utf-8") as stream:
        every = batches_for(model, lengths, BATCH, MOST_TOKENS)
        batches = [rows for rows in every if not all(row in found for row in rows)]
        for rows in counted(batches, f"texts of {model.name}", len(examples)):
            written = model.write_several(encoder.collate([features[row] for row in rows]), 0 if several else 1)
            for row, texts in zip(rows, _texts(encoder, written), strict=True):
                found[row] = texts
                stream.write(json.dumps({"row": row, "texts": texts}, ensure_ascii=False) + "\n")
            stream.flush()


def _texts(encoder: TextEncoder, written: Sequence[Sequence[Sequence[int]]]) -> Iterator[list[str]]:
    for own in written:
        yield list(dict.fromkeys(encoder.text_of(ids) for ids in own))


def _kept(file: Path) -> dict[int, list[str]]:
    """Return the texts of an earlier call by the number of their source; half of a last line is cut off."""
    if not file.is_file():
        return {}
    content = file.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        file.write_bytes(whole)
    try:
        lines = [json.loads(line) for line in whole.split(b"\n")[:-1]]
        return {int(line["row"]): [str(text) for text in line["texts"]] for line in lines}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file}: these texts of a teacher are damaged ({error}); remove {file.parent}") from error
