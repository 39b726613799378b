"""``compress optimize``: from a finished model and a table to its fastest export that agrees."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compress.commands.run import Json
from compress.terminal.options import finite
from compress.terminal.output import plain, write_json


def optimize(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model folder that answers a task, or a hub name.")],
    data: Annotated[
        str | None, typer.Option(help="File, folder or hub name with labelled texts; without any, synthetic texts.")
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="The column with the text; give it twice for a pair.")
    ] = None,
    label: Annotated[str | None, typer.Option(metavar="COLUMN", help="The column with the label.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write; by default runs/NAME-optimized.")] = None,
    margin: Annotated[
        float, typer.Option(min=0.0, callback=finite, help="Loss of the score that still counts as no worse.")
    ] = 0.01,
    agreement: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, callback=finite, help="Least share of equal predictions; by default 0.98."),
    ] = None,
    json: Json = False,
) -> None:
    """Export a finished model in the fastest way that answers as it does; measure and certify what that costs."""
    from compress.optimizing import optimize as made_fast

    done = made_fast(model, data, text=text, label=label, out=out, margin=margin, agreement=agreement)
    if json:
        write_json(
            {
                "export": str(done.export),
                "variant": done.chosen.place,
                "report": None if done.page is None else str(done.page),
                "certificate": None if done.certificate is None else str(done.certificate),
                "results": [plain(result) for result in done.results],
                "notes": list(done.notes),
            }
        )
        return
    if done.results:
        from eval.report.console import to_text

        typer.echo(to_text(done.results))
    for note in done.notes:
        typer.echo(note)
    for what, path in (("report", done.page), ("certificate", done.certificate)):
        if path is not None:
            typer.echo(f"{what}: {path}")
