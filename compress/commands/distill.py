"""``compress distill``: from a finished model and a table to a student of fewer layers, exported and certified."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from compress.commands.optimize import Label, Margin, Text, told
from compress.commands.run import Json, Track


def distill(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model folder that answers a task, or a hub name.")],
    data: Annotated[
        str,
        typer.Option(help="File, folder or hub name with labelled texts, or a folder of documents and judged queries."),
    ],
    layers: Annotated[int | None, typer.Option(min=1, help="Layers of the student; by default half.")] = None,
    unlabelled: Annotated[
        Path | None, typer.Option(help="A file of texts, one a line, that only the teacher answers.")
    ] = None,
    text: Text = None,
    label: Label = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write; by default runs/NAME-Nl.")] = None,
    margin: Margin = 0.01,
    quick: Annotated[
        bool, typer.Option("--quick", help="Train with the teacher alone, and not on labels only as well.")
    ] = False,
    track: Track = None,
    json: Json = False,
) -> None:
    """Distil a finished model into fewer of its layers, by a recipe that is written beside; measure and certify it."""
    from compress.shortcuts.distilling import shrink

    how: dict[str, Any] = {"text": text, "label": label, "out": out, "margin": margin, "quick": quick}
    done = shrink(model, data, layers=layers, unlabelled=unlabelled, track=track or (), **how)
    files = {"model": done.model, "export": done.export, "recipe": done.recipe}
    told(files, done.results, done.notes, done.page, done.certificate, json)
