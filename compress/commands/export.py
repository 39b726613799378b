"""``compress export``: a model as a file that other runtimes load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compress.commands.models import is_export, spec_of, task_for
from compress.commands.output import megabytes, write_json
from compress.commands.run import Json
from eval.errors import UserError, did_you_mean

FORMATS = ("onnx",)


def export(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="An artifact, or a transformers folder or hub name.")],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    to: Annotated[str, typer.Option(help=f"Format: {', '.join(FORMATS)}.")] = "onnx",
    int8: Annotated[bool, typer.Option("--int8", help="Quantize the weights to int8.")] = False,
    data: Annotated[
        str | None, typer.Option(help="Data on which the export has to agree with the model; without it, made-up text.")
    ] = None,
    json: Json = False,
) -> None:
    """Export a model, compare the export with the model on real inputs, and refuse it if they disagree."""
    if to not in FORMATS:
        raise UserError(f"--to: got {to!r}{did_you_mean(to, FORMATS)}")
    if is_export(model):
        raise UserError(f"{model}: is an export already; export the model folder it was made from")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: is there already and not empty; choose another --out or remove it")

    from compress.artifact import Artifact
    from compress.export.onnx import export_onnx

    artifact = Artifact.from_pretrained(model)
    examples = () if data is None else task_for(spec_of(artifact), data).validation
    export_onnx(artifact, out, int8=int8, examples=examples, name=out.name)
    found = {"folder": str(out), "bytes": (out / "model.onnx").stat().st_size}
    if json:
        write_json(found)
        return
    typer.echo(f"wrote {out}: {megabytes((out / 'model.onnx').stat().st_size)} MB")
    typer.echo(f"try it: compress predict {out} 'some text'")
