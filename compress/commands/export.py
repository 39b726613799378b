"""``compress export``: a model as a file that other runtimes load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compress.commands.models import is_export, spec_of, task_for
from compress.commands.output import megabytes, write_json
from compress.commands.run import Json
from compress.export.targets import TARGETS, export_to
from eval.errors import UserError


def export(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="An artifact, or a transformers folder or hub name.")],
    out: Annotated[Path, typer.Option(help="Folder to write; an earlier export is replaced.")],
    to: Annotated[str, typer.Option(help=f"Target: {', '.join(TARGETS)}.")] = "onnx",
    int8: Annotated[
        bool | None, typer.Option("--int8/--fp32", help="8-bit weights or not; by default as the recipe's steps say.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Data on which the export has to agree with the model; without it, made-up text.")
    ] = None,
    json: Json = False,
) -> None:
    """Export a model, compare the export with the model on the same inputs, and refuse it if they disagree."""
    write = export_to(to)
    if is_export(model):
        raise UserError(f"{model}: is an export already; export the model folder it was made from")

    from compress.artifact import Artifact

    artifact = Artifact.from_pretrained(model)
    examples = () if data is None else task_for(spec_of(artifact), data).validation
    report = write(artifact, out, int8=int8, examples=examples)
    gate = report.gate.to_dict()
    if json:
        figures = {"scheme": report.scheme, "bytes": report.bytes, "float_bytes": report.float_bytes}
        write_json({"folder": str(report.folder), **figures, "gate": gate, "seconds": round(report.seconds, 1)})
        return
    typer.echo(f"wrote {out}: {report.scheme}, {megabytes(report.bytes)} MB")
    typer.echo(
        f"agrees with the model in {gate['agreement']:.2%} of the decisions on {gate['examples']:,} examples "
        f"and made-up texts; largest difference of a logit {gate['max_abs_difference']:.2g}"
    )
    typer.echo(f"try it: compress predict {out} TEXT")
