"""``compress certify`` and ``compress recheck``: a claim about a model in one file, and whether it holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compress.commands.run import Json
from compress.terminal.next_command import say_next
from compress.terminal.options import finite, index_forms
from compress.terminal.output import write_json

CertificateFile = Annotated[Path, typer.Argument(metavar="CERTIFICATE", help="The file that 'compress certify' wrote.")]


def certify(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder that 'compress run' wrote.")],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("model.cert"),
    model: Annotated[
        str | None,
        typer.Option(help="Which model, such as onnx-int8; by default the one that the page leads with."),
    ] = None,
    index: Annotated[
        str | None,
        typer.Option(
            metavar="FORM",
            help="For retrieval: the index that the run measured, 'int8' or 'vectors: binary, rescore: int8'.",
        ),
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(min=0.0, callback=finite, help="Refuse if the margin that was fixed before is another one."),
    ] = None,
    sign: Annotated[
        Path | None, typer.Option(metavar="KEY", help="Sign with this elliptic-curve private key (PEM).")
    ] = None,
    json: Json = False,
) -> None:
    """Write the certificate of a run: its claim, what came of it, and all that a stranger needs to check it.

    What the scores show was claimed by the recipe, before the test split was opened; a certificate that shows nothing
    says so.
    """
    from compress.certification.certifying import certify as write

    form = None if index is None else index_forms([index])[0]
    done = write(run, out, model=model, index=form, margin=margin, sign=sign)
    if json:
        signature = None if done.signature is None else str(done.signature)
        write_json({"certificate": str(done.file), "sentence": done.sentence, "signature": signature})
        return
    typer.echo(f"{done.sentence}.")
    typer.echo(f"certificate: {done.file}")
    if done.signature is not None:
        typer.echo(f"signature: {done.signature}")
    say_next("compress", "recheck", done.file, *done.checked_with)


def recheck(
    certificate: CertificateFile,
    model: Annotated[Path | None, typer.Option(metavar="FOLDER", help="The certified model or export.")] = None,
    teacher: Annotated[
        list[Path] | None, typer.Option(metavar="FOLDER", help="Its teacher; may be repeated for an ensemble.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Folder or file of the data.")] = None,
    key: Annotated[
        Path | None, typer.Option(metavar="KEY", help="Public key (PEM) of whoever should have signed it.")
    ] = None,
    level: Annotated[
        int, typer.Option(min=1, max=4, help="The last level: 1 statistics, 2 files and data, 3 predictions, 4 cost.")
    ] = 4,
    json: Json = False,
) -> None:
    """Check a certificate: statistics from its predictions, digests, a replay, sizes and speed.

    The exit code says what was found: 0 VALID, 3 PARTIAL (something was not given), 4 NOT COMPARABLE (speed, on another
    machine), 5 NOT REPRODUCED, 6 OTHER DATA, 7 OTHER MODEL, 8 BAD SIGNATURE, 9 INVALID.
    """
    from compress.certification.replaying import recheck as check
    from eval.certificate.findings import Word

    found = check(certificate, model=model, teacher=teacher or (), data=data, key=key, level=level)
    if json:
        write_json(found.to_dict())
    else:
        typer.echo(str(found))
    if found.word is not Word.VALID:
        typer.echo(f"{certificate}: {found.word}: {found.reason}", err=True)
    raise typer.Exit(found.exit_code)
