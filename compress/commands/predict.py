"""``compress predict``: texts to JSON lines through an export; neither torch nor transformers is loaded."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from compress.commands.models import is_export
from eval.errors import UserError

CHUNK = 256
"""Lines that are read before the first is answered, so that batches hold similar lengths."""

Line = tuple[str, str]
"""Where a line stands, and what it says."""


def predict(
    export: Annotated[Path, typer.Argument(metavar="EXPORT", help="A folder that 'compress export' wrote.")],
    texts: Annotated[list[str] | None, typer.Argument(metavar="[TEXT]...", help="Texts to answer.")] = None,
    file: Annotated[Path | None, typer.Option(help="A file with one text a line; by default standard input.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Inputs of a batch.")] = 32,
) -> None:
    r"""Answer texts with an export: one JSON object a line, in the order of the texts.

    A line is a text, two texts with a tab between them (pairs; question and context), words with spaces between them
    (tagging), or a JSON object with the fields of the data.
    """
    if not is_export(export):
        raise UserError(f"{export}: no export.json here; 'compress export MODEL --to onnx --out DIR' writes an export")
    if texts and file is not None:
        raise UserError("texts and --file were both given; choose one")

    from compress.export.runtime import Runtime
    from eval.inference import predict as answers_of

    model = Runtime(export)
    kind, pair = model.encoder.settings.kind, model.encoder.settings.pair
    chunk = 1 if not texts and file is None and sys.stdin.isatty() else CHUNK
    for lines in _chunks(_lines(texts, file), chunk):
        examples = _examples(lines, kind, pair)
        for example, answer in zip(examples, answers_of(model, examples, batch_size).answers, strict=True):
            named = {"id": example["id"]} if "id" in example else {}
            typer.echo(json.dumps(named | answer, ensure_ascii=False))


def parse_example(text: str, kind: str, pair: bool) -> dict[str, Any]:
    """Turn a line into an example.

    Args:
        text: What the line says.
        kind: Kind of task.
        pair: Whether examples are pairs of texts.

    Raises:
        ValueError: If the line is no example of this kind; the message says what one looks like.
    """
    fields = ("question", "context") if kind == "qa" else ("text_a", "text_b") if pair else ()
    if text.lstrip().startswith("{"):
        found = _object(text)
        needed = ("tokens",) if kind == "tagging" else fields or ("text",)
        if found is not None and all(_fits(found.get(name), name) for name in needed):
            return found
        if fields:
            raise ValueError(f"this is no JSON object with {' and '.join(fields)} as text")
    if kind == "tagging":
        return {"tokens": text.split()}
    if not fields:
        return {"text": text}
    parts = text.split("\t")
    if len(parts) != 2:
        raise ValueError(f"write {fields[0]}, a tab, {fields[1]}; or a JSON object with these two fields")
    return dict(zip(fields, parts, strict=True))


def _object(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _fits(value: Any, name: str) -> bool:
    if name == "tokens":
        return isinstance(value, list) and all(isinstance(token, str) for token in value)
    return isinstance(value, str)


def _examples(lines: Iterable[Line], kind: str, pair: bool) -> list[dict[str, Any]]:
    examples: list[dict[str, Any]] = []
    problems: list[str] = []
    for where, text in lines:
        try:
            examples.append(parse_example(text, kind, pair))
        except ValueError as error:
            problems.append(f"{where}: {error}")
    if problems:
        raise UserError(*problems)
    return examples


def _lines(texts: list[str] | None, file: Path | None) -> Iterator[Line]:
    if texts:
        yield from ((f"text {number}", text) for number, text in enumerate(texts, start=1))
        return
    if file is None or str(file) == "-":
        yield from _decoded(sys.stdin.buffer, "standard input")
        return
    try:
        stream = file.open("rb")
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror})") from error
    with stream:
        yield from _decoded(stream, str(file))


def _decoded(stream: Iterable[bytes], source: str) -> Iterator[Line]:
    for number, raw in enumerate(stream, start=1):
        where = f"{source}:{number}"
        try:
            yield where, raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise UserError(f"{where}: not UTF-8 text (byte 0x{raw[error.start]:02x})") from error


def _chunks(lines: Iterator[Line], size: int) -> Iterator[list[Line]]:
    while chunk := list(islice(lines, size)):
        yield chunk
