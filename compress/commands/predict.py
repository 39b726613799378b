"""``compress predict``: texts to JSON lines through an export; neither torch nor transformers is loaded."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
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
    batch_size: Annotated[int, typer.Option(min=1, help="Inputs of a batch.")] = 32,
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

    from compress.export.runtime.answering import CHUNK, Runtime
    from compress.export.runtime.program import read_lines
    from compress.export.targets.library import ExportError

    try:
        model = Runtime(export, speed=speed)
        if texts:
            _answer(model.stream(texts, batch_size=batch_size))
        elif file is None or str(file) == "-":
            # At a terminal every line is answered at once; from a pipe, many together are faster.
            chunk = 1 if sys.stdin.isatty() else CHUNK
            _answer(model.stream(read_lines(sys.stdin.buffer), chunk=chunk, batch_size=batch_size))
        else:
            with file.open("rb") as stream:
                _answer(model.stream(read_lines(stream), batch_size=batch_size))
    except ExportError as error:
        raise UserError(*str(error).splitlines()) from error
    except (FileNotFoundError, IsADirectoryError) as error:
        raise UserError(f"{error.filename}: cannot be read ({error.strerror})") from error


def _answer(answers: Iterable[object]) -> None:
    for answer in answers:
        typer.echo(json.dumps(answer, ensure_ascii=False))
