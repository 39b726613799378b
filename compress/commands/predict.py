"""``compress predict``: texts to predictions; with an export neither torch nor transformers is loaded."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from compress.terminal.models import is_export, require_folder
from compress.terminal.options import finite
from eval.errors import UserError

if TYPE_CHECKING:
    from compress.prediction import Answering


def predict(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="A folder that 'compress export' wrote, or a model folder (slower).")
    ],
    texts: Annotated[list[str] | None, typer.Argument(metavar="[TEXT]...", help="Lines to answer.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            help="Lines (.jsonl: JSON objects) or a table (.csv, .tsv, .parquet), maybe .gz; else standard input."
        ),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="The column of a table with the text; twice for a pair."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write to this file, which is there whole or not at all; else standard output.")
    ] = None,
    processes: Annotated[
        str, typer.Option(metavar="N|auto", help="Processes of one thread each; auto is one for each core.")
    ] = "1",
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Most inputs of a batch; by default as many as are fastest.")
    ] = None,
    speed: Annotated[
        float | None,
        typer.Option(callback=finite, help="Of a model with early exits: 0 runs every layer, 1 one; as exported."),
    ] = None,
    prompt_name: Annotated[
        str | None,
        typer.Option(metavar="query|document", help="Of an embedder: what all texts are, for its prompt."),
    ] = None,
) -> None:
    """Answer lines of text, or the rows of a table: one JSON object a line, in their order.

    A line is a text, two texts with a tab between them (pairs; question and context), words with spaces between them
    (tagging), a text and its choices with tabs between them (multiple-choice), or a JSON object with the fields of the
    data. Of a table every row comes back with its prediction beside; as CSV if --out ends in .csv.
    """
    if texts and file is not None:
        raise UserError("texts and --file were both given; choose one")

    from compress import prediction
    from compress.export.runtime.given_example import refuse_file_name
    from compress.export.runtime.many_processes import process_count
    from compress.export.targets.library import ExportError

    table = file is not None and (prediction.is_table(file) or bool(text))
    if text and not table:
        raise UserError("--text: names a column of a table; give it with --file, or leave it out")
    try:
        count = process_count(processes)
    except ValueError as error:
        raise UserError(f"--processes: {error}") from error
    # At a terminal every line is answered at once; else many together are faster.
    chunk = 1 if not texts and file is None and out is None and sys.stdin.isatty() else None
    try:
        refuse_file_name(texts or ())
        (kind, pair), answer = _opened(
            model, count, chunk=chunk, batch_size=batch_size, speed=speed, prompt_name=prompt_name
        )
        with ExitStack() as opened:
            if file is not None and table:
                as_csv = out is not None and out.suffix == ".csv"
                found = prediction.of_table(file, kind, pair, text or (), answer, as_csv)
            else:
                found = answer(texts or _lines(file, opened, kind, pair))
            _write(found, out)
    except ExportError as error:
        raise UserError(*str(error).splitlines()) from error


def _opened(model: Path, processes: int, **how: Any) -> tuple[tuple[str, bool], Answering]:
    """Return what a model reads, kind and whether pairs, and what answers with it."""
    require_folder(model)
    if is_export(model) or not (model / "config.json").is_file():
        from compress.export.runtime.manifest import asked_of
        from compress.export.runtime.many_processes import json_lines

        return asked_of(model), lambda items: json_lines(model, items, processes, **how)
    wrong = [
        ("--processes", processes != 1),
        ("--batch-size", how["batch_size"]),
        ("--speed", how["speed"] is not None),
    ]
    if any(given for _, given in wrong):
        names = " and ".join(name for name, given in wrong if given)
        raise UserError(f"{names}: is for exports, and {model} is a model folder; 'compress export' makes one of it")
    from compress.artifact.artifact import Artifact
    from compress.prediction import of_model

    artifact = Artifact.from_pretrained(str(model))
    return (artifact.task.kind, artifact.task.pair), lambda items: of_model(
        artifact, items, how["chunk"], how["prompt_name"]
    )


def _lines(file: Path | None, opened: ExitStack, kind: str, pair: bool) -> Iterator[str | dict[str, Any]]:
    from compress.export.runtime.given_example import file_items
    from compress.export.runtime.program import read_lines
    from eval.files.unpacked import open_unpacked

    if file is None or str(file) == "-":
        return read_lines(sys.stdin.buffer)
    try:
        return file_items(str(file), read_lines(opened.enter_context(open_unpacked(file))), kind, pair)
    except (FileNotFoundError, IsADirectoryError) as error:
        raise UserError(f"{error.filename}: cannot be read ({error.strerror})") from error


def _write(found: Iterable[bytes], out: Path | None) -> None:
    if out is None:
        for lines in found:
            typer.echo(lines, nl=False)
        return

    from eval.files.writing import atomic_file

    with atomic_file(out) as beside, beside.open("wb") as stream:
        stream.writelines(found)
    typer.echo(f"written to {out}")
