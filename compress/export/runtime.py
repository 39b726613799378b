"""Answers from an export folder with numpy, tokenizers and the runtime's own library; no torch, no transformers.

Beside ``engines`` it imports ``eval.encoding`` and ``eval.inference`` alone, so that every export can carry all of it.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from compress.export.engines import MODEL_FILES, Engine, first_line, open_engine
from compress.export.engines import ExportError as ExportError
from eval.encoding import Array, Inputs, TextEncoder
from eval.files.json_text import JsonError, parse_json, read_json
from eval.inference import Answer, Predictions, predict
from eval.kinds.reading import Reading
from eval.kinds.registry import kind_of

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
    "speed": (int, float),
}
"""Fields of the manifest, as JSON values."""
MOST_THREADS = 1024
BATCH_TOKENS = 1024
"""Tokens of a batch: more of them are no faster on a processor, and take more memory."""
CHUNK = 1024
"""Examples that ``Runtime.stream`` holds at a time, so that batches are of similar length and memory is bounded."""


class Runtime:
    """An exported model, ready to answer; a ``Predictor``.

    Args:
        folder: What ``compress export`` wrote, for whatever target.
        threads: Threads of one product; by default ``OMP_NUM_THREADS``, else what ``--tune`` found, else the physical
            cores that this process may use.
        name: What reports call it; by default the name in the folder.
        spinning: Let idle threads wait actively: fastest for one model alone, slower beside other busy sessions.
        speed: For a model with early exits, the uncertainty up to which an input leaves, 0 to 1; 0 runs every layer.
            By default that of the export.
        engine: What runs the network in the place of the library that the export was made for.

    Attributes:
        name: What reports call it.
        folder: Where it lies.
        manifest: Content of ``export.json``.
        task: The task specification as plain JSON.
        encoder: How examples become inputs.

    Raises:
        ExportError: If a file is missing, damaged or of a later version, the runtime's library is missing or cannot
            load the model, or it has no such ``speed``.
    """

    def __init__(
        self,
        folder: str | Path,
        threads: int | None = None,
        *,
        name: str | None = None,
        spinning: bool = True,
        speed: float | None = None,
        engine: Engine | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.manifest = read_manifest(self.folder)
        self.name: str = name or self.manifest["name"]
        self.task: dict[str, Any] = self.manifest["task"]
        try:
            self.encoder = TextEncoder.from_folder(self.folder)
        except Exception as error:  # tokenizers raises bare Exceptions
            raise ExportError(f"{self.folder}: the tokenizer cannot be read ({first_line(error)})") from error
        if speed is not None and self.manifest.get("speed") is None:
            raise ExportError(f"{self.folder}: has no early exits whose speed can be set")
        if threads is not None and not 0 <= threads <= MOST_THREADS:
            raise ExportError(
                f"threads: got {threads}, allowed are 1 to {MOST_THREADS:,}, or 0 for the library's choice"
            )
        if speed is not None and not 0 <= speed <= 1:
            raise ExportError(f"speed: got {speed}, allowed are 0 (every layer) to 1 (the first exit)")
        self.settings: Inputs = {} if speed is None else {"speed": np.array(speed, dtype=np.float32)}
        target = target_of(self.manifest)
        self.engine = engine or open_engine(target, self.folder, threads or self._threads(), spinning)
        self.session = self.engine.session

    def _threads(self) -> int:
        cores, tuned = default_threads(), self.manifest.get("tuned")
        found = (tuned or {}).get("threads") if "OMP_NUM_THREADS" not in os.environ else None
        return min(found, cores or found) if isinstance(found, int) and 0 < found <= MOST_THREADS else cores

    def forward(self, inputs: Inputs) -> Array:
        """Return float32 logits ``[rows, C]``, or ``[rows, length, C]`` for tagging, qa (C = start, end), masked-lm.

        For embedding they are the vectors of the texts, ``[rows, d]``.
        """
        return self.forward_counted(inputs)[0]

    def forward_counted(self, inputs: Inputs) -> tuple[Array, Array | None]:
        """Return the logits, and for a model with early exits how many layers each row ran through, ``[rows]``."""
        try:
            found = self.engine.run({**inputs, **self.settings})
        except Exception as error:  # each library has a dozen unrelated error types
            raise ExportError(f"{self.folder}: its runtime cannot run it ({first_line(error)})") from error
        layers = found.pop("layers", None)
        found.pop("last_hidden_state", None)  # of an embedding, for tools that pool it themselves
        logits = np.stack(list(found.values()), axis=-1) if len(found) > 1 else next(iter(found.values()))
        return np.asarray(logits, dtype=np.float32), layers

    def predict(self, examples: Iterable[str | Mapping[str, Any]], batch_size: int = 32) -> Predictions:
        """Answer examples, or lines as ``example`` reads them; answers come in the same order.

        Raises:
            ExportError: If an example lacks a field or is no text; all such examples at once.
        """
        return predict(self, self._examples(examples, 1), batch_size, BATCH_TOKENS)

    def stream(
        self, examples: Iterable[str | Mapping[str, Any]], chunk: int = CHUNK, batch_size: int = 32
    ) -> Iterator[Answer]:
        """Answer any number of examples or lines in bounded memory, in the same order.

        Args:
            examples: Read ``chunk`` at a time.
            chunk: How many are held at once.
            batch_size: Inputs of a batch.

        Raises:
            ExportError: If an example lacks a field or is no text; its number is counted from 1.
        """
        source, first = iter(examples), 1
        while held := list(islice(source, chunk)):
            yield from predict(self, self._examples(held, first), batch_size, BATCH_TOKENS).answers
            first += len(held)

    def _examples(self, items: Iterable[str | Mapping[str, Any]], first: int) -> list[dict[str, Any]]:
        settings = self.encoder.settings
        if self.encoder.kind.masks:
            raise ExportError(f"a {settings.kind} export gives logits (Runtime.forward), not answers")
        found: list[dict[str, Any]] = []
        problems: list[str] = []
        for number, item in enumerate(items, start=first):
            try:
                found.append(example(item, settings.kind, settings.pair))
            except ExportError as error:
                problems.append(f"example {number}: {error}")
        if problems:
            shown = problems[:20] + ([f"and {len(problems) - 20} more"] if len(problems) > 20 else [])
            raise ExportError("\n".join(shown))
        return found


def example(item: str | Mapping[str, Any], kind: str, pair: bool) -> dict[str, Any]:
    """Turn a line into an example, or check the fields of an example.

    Args:
        item: A mapping; or a line: a JSON object with the fields of the data, a text, words with white space between
            them (tagging), or two texts with a tab between them (pairs; question and context), or a text and its
            choices with tabs between them (multiple-choice). For embedding a line is one text, and an object may hold
            ``text`` or ``text_a`` and ``text_b``.
        kind: Kind of task.
        pair: Whether examples are pairs of texts.

    Raises:
        ExportError: If a field is missing or is no text, or a line has too few tabs or too many.
    """
    asked = kind_of(kind)
    fields = asked.given(pair)
    values = _fields_of(item, fields, asked) if isinstance(item, str) else item
    if not isinstance(values, Mapping):
        raise ExportError(f"expected a text or an object with {' and '.join(fields)}, got {type(item).__name__}")
    if asked.others and asked.others[0] in values:
        fields = asked.others
    missing = [field for field in fields if field not in values]
    if missing:
        raise ExportError(f"lacks {' and '.join(missing)}; its fields are {', '.join(map(str, values)) or 'none'}")
    least = asked.lists
    checked = {
        field: _texts(values[field], field, least[field]) if field in least else _text(values[field], field)
        for field in fields
    }
    return {**values, **checked}


def _fields_of(line: str, fields: tuple[str, ...], kind: Reading) -> dict[str, Any]:
    """Return the fields of a line."""
    if line.lstrip().startswith("{"):
        try:
            found = parse_json(line)
        except JsonError:
            found = None
        # A lone text may look like JSON; two texts in one line never do.
        if isinstance(found, dict) and (len(fields) > 1 or not found.keys().isdisjoint({fields[0], *kind.others})):
            return found
    try:
        return kind.read_line(line, fields)
    except ValueError as error:
        raise ExportError(str(error)) from None


def _texts(value: Any, field: str, least: int) -> list[str]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ExportError(f"{field} must be a list of texts, got {type(value).__name__}")
    if len(value) < least:
        raise ExportError(f"{field} must be a list of {least} texts or more, got {len(value)}")
    return [_text(text, f"each of {field}") for text in value]


def _text(value: Any, field: str) -> str:
    if not isinstance(value, str):
        raise ExportError(f"{field} must be a text, got {type(value).__name__}")
    return value.encode("utf-8", "replace").decode("utf-8")  # half a surrogate pair is no character


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return ``export.json`` of an export folder whose files are all there and whole.

    Raises:
        ExportError: With everything that is wrong with the folder.
    """
    file = folder / MANIFEST
    if not file.is_file():
        raise ExportError(f"{folder}: no {MANIFEST} here; an export is a folder that 'compress export' wrote")
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
    wrong = [
        key
        for key, kinds in KINDS.items()
        if not isinstance(manifest.get(key), kinds if key in REQUIRED else (*kinds, type(None)))
    ]
    if wrong:
        raise ExportError(f"{file}: {' and '.join(wrong)} missing or of another type; export it again")
    files, target = manifest["files"], target_of(manifest)
    if target not in MODEL_FILES:
        raise ExportError(
            f"{folder}: an export for {target[:60]!r}, which this cannot run; README.md there says what can"
        )
    problems = [f"does not list {name}" for name in (*MODEL_FILES[target], *FILES) if name not in files]
    for name, known in files.items():
        problems += wrong_file(folder, name, known)
    if target == "onnx" and not problems and _has_weights_elsewhere(folder / MODEL_FILES[target][0]):
        problems.append("model.onnx keeps weights in other files, which no export does")
    if not problems and manifest.get("digest", "") not in ("", with_digest(manifest)["digest"]):
        problems.append(f"{MANIFEST} was changed")  # earlier versions wrote none
    if problems:
        raise ExportError(f"{folder}: damaged export: {'; '.join(problems)}; copy or export it again")
    return manifest


def target_of(manifest: Mapping[str, Any]) -> str:
    """Return what an export was made for: ``onnx``, where its ``export.json`` does not say."""
    return str(manifest.get("target", "onnx"))


def with_digest(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest, as in JSON, with the digest of the rest of it."""
    values = json.loads(json.dumps({key: value for key, value in manifest.items() if key != "digest"}))
    text = json.dumps(values, sort_keys=True)
    return {**values, "digest": hashlib.sha256(text.encode()).hexdigest()}


def wrong_file(folder: Path, name: str, known: Any) -> list[str]:
    """Return what is wrong with a file of a folder, by the size and digest that are known of it."""
    if not name or name != Path(name).name or "\\" in name or name == "..":
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


def _has_weights_elsewhere(file: Path) -> bool:
    """Whether an ONNX file names external data: an entry with the key ``location``, as protobuf writes it."""
    if not file.stat().st_size:  # cannot be mapped; whoever loads it will say what is wrong
        return False
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(b"\n\x08location\x12") >= 0


def sha256(file: Path) -> str:
    """Return the SHA-256 of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def default_threads() -> int:
    """Return ``OMP_NUM_THREADS`` if it is a number of threads, else the physical cores (0: ask ONNX Runtime)."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    if given.isascii() and given.isdecimal() and len(given) < 6 and 0 < int(given) <= MOST_THREADS:
        return int(given)
    try:
        cores = set()
        for cpu in os.sched_getaffinity(0):
            topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
            cores.add(tuple((topology / part).read_text() for part in ("physical_package_id", "core_id")))
        return len(cores)
    except (AttributeError, OSError):
        return 0
