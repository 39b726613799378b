"""``compress optimize``: from a finished model and a table to its fastest export that agrees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from compress.commands.run import Json
from compress.terminal.next_command import say_next_predict
from compress.terminal.options import finite
from compress.terminal.output import plain, write_json

if TYPE_CHECKING:
    from eval.result import Result


Text = Annotated[
    list[str] | None, typer.Option(metavar="COLUMN", help="The column with the text; give it twice for a pair.")
]
Label = Annotated[str | None, typer.Option(metavar="COLUMN", help="The column with the label.")]
Margin = Annotated[
    float, typer.Option(min=0.0, callback=finite, help="Loss of the score that still counts as no worse.")
]


def optimize(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model folder that answers a task, or a hub name.")],
    data: Annotated[
        str | None,
        typer.Option(
            help="File, folder or hub name with labelled texts, or a folder of documents and judged queries; without "
            "any, synthetic texts."
        ),
    ] = None,
    text: Text = None,
    label: Label = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write; by default runs/NAME-optimized.")] = None,
    margin: Margin = 0.01,
    agreement: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, callback=finite, help="Least share of equal predictions; by default 0.98."),
    ] = None,
    track: Annotated[
        list[str] | None,
        typer.Option(metavar="TRACKER", help="Send what is measured to it, such as tensorboard; may be repeated."),
    ] = None,
    json: Json = False,
) -> None:
    """Export a finished model in the fastest way that answers as it does; measure and certify what that costs."""
    from compress.shortcuts.optimizing import optimize as made_fast

    how: dict[str, Any] = {"text": text, "label": label, "margin": margin, "agreement": agreement}
    done = made_fast(model, data, out=out, track=track or (), **how)
    told(
        {"export": done.export}, done.results, done.notes, done.page, done.certificate, json, variant=done.chosen.place
    )


def told(
    files: Mapping[str, Path],
    results: Sequence[Result],
    notes: Sequence[str],
    page: Path | None,
    certificate: Path | None,
    json: bool,
    **more: str,
) -> None:
    """Print what came of a model and a table: as JSON, or the table, the notes and where things are."""
    where = {**files, "report": page, "certificate": certificate}
    if json:
        kept = {what: None if path is None else str(path) for what, path in where.items()}
        write_json({**kept, **more, "results": [plain(result) for result in results], "notes": list(notes)})
        return
    if results:
        from eval.report.console import to_text

        typer.echo(to_text(results))
    for note in notes:
        typer.echo(note)
    for what, path in where.items():
        if path is not None:
            typer.echo(f"{what}: {path}")
    say_next_predict(files["export"])
