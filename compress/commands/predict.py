"""``compress predict``: texts to JSON lines through an export; neither torch nor transformers is loaded."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from compress.commands.options import finite
from eval.errors import UserError


def predict(
    export: Annotated[Path, typer.Argument(metavar="EXPORT", help="A folder that 'compress export' wrote.")],
    texts: Annotated[list[str] | None, typer.Argument(metavar="[TEXT]...", help="Lines to answer.")] = None,
    file: Annotated[
        Path | None, typer.Option(help="A file of lines; without it and without texts, standard input.")
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
) -> None:
    """Answer lines of text with an export: one JSON object a line, in the order of the lines.

    A line is a text, two texts with a tab between them (pairs; question and context), words with spaces between them
    (tagging), a text and its choices with tabs between them (multiple-choice), or a JSON object with the fields of the
    data.
    """
    if texts and file is not None:
        raise UserError("texts and --file were both given; choose one")

    from compress.export.runtime.many_processes import json_lines, process_count
    from compress.export.targets.library import ExportError

    try:
        count = process_count(processes)
    except ValueError as error:
        raise UserError(f"--processes: {error}") from error
    # At a terminal every line is answered at once; else many together are faster.
    chunk = 1 if not texts and file is None and out is None and sys.stdin.isatty() else None
    try:
        with ExitStack() as opened:
            lines = texts or _lines(file, opened)
            found = json_lines(export, lines, count, chunk=chunk, batch_size=batch_size, speed=speed)
            _write(found, out)
    except ExportError as error:
        raise UserError(*str(error).splitlines()) from error


def _lines(file: Path | None, opened: ExitStack) -> Iterator[str]:
    from compress.export.runtime.program import read_lines

    if file is None or str(file) == "-":
        return read_lines(sys.stdin.buffer)
    try:
        return read_lines(opened.enter_context(file.open("rb")))
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
