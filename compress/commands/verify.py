"""``compress verify``: an export through every runtime that is installed, against the answers it must give."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from compress.commands.optimize import Label, Text
from compress.commands.run import Json
from compress.terminal.models import is_export, require_folder, with_data
from compress.terminal.output import table, write_json
from eval.errors import CompressError, UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compress.export.check.verification import Verified


TORCH = "torch model"
"""What ``--against`` is called in the table."""


def verify(
    export: Annotated[Path, typer.Argument(metavar="EXPORT", help="A folder that 'compress export' wrote.")],
    against: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Compare it with this torch model as well, as at its making.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Data for --against; without it, synthetic text.")] = None,
    text: Text = None,
    label: Label = None,
    json: Json = False,
) -> None:
    """Run an export's golden test vectors through every installed runtime.

    It fails if one answers otherwise or cannot run the export, and if none is installed: what did not run has not been
    verified.
    """
    require_folder(export)
    if not is_export(export):
        from compress.export.runtime.manifest import no_export

        raise UserError(no_export(export))
    given = [name for name, value in (("--data", data), ("--text", text), ("--label", label)) if value]
    if given and against is None:
        are = "is" if len(given) == 1 else "are"
        raise UserError(f"{' and '.join(given)}: {are} for --against, and there is none; add --against MODEL")

    from compress.export.check.verification import against_model
    from compress.export.check.verification import verify as through_all
    from compress.export.targets.library import ExportError

    try:
        found = through_all(export)
        if against is not None:
            from compress.artifact.artifact import Artifact
            from compress.export.default_int8 import compared

            model, task = with_data(Artifact.from_pretrained(against), data, text, label, truths=False)
            found.append(against_model(export, model, () if task is None else compared(task)))
    except ExportError as error:
        raise UserError(*str(error).splitlines()) from error
    if json:
        write_json([asdict(each) | {"passed": each.passed} for each in found])
    else:
        heads = (
            "runtime",
            "version",
            ">inputs",
            ">largest\ndifference",
            ">allowed",
            ">predictions",
            ">as torch",
            "result",
        )
        table(heads, [_row(each) for each in found])
    failed = [each for each in found if not each.passed and (each.version is not None or not _any_ran(found))]
    if failed:
        told = "" if _any_ran(found) else "not verified, for no runtime could run it\n"
        raise CompressError(
            f"{export}: {told}" + "\n".join(f"{each.runtime}: {'; '.join(each.problems)}" for each in failed)
        )


def _any_ran(found: Sequence[Verified]) -> bool:
    """Whether a runtime answered; the torch model is none."""
    return any(each.ran for each in found if each.runtime != TORCH)


def _row(each: Verified) -> tuple[str, ...]:
    if not each.ran:
        return (each.runtime, each.version or "-", "", "", "", "", "", each.problems[0])
    figures = (f"{each.rows}", f"{each.largest:.2g}", f"{each.limit:.2g}", f"{each.agreement:.2%}", f"{each.torch:.2%}")
    return (each.runtime, each.version or "-", *figures, _result(each))


def _result(each: Verified) -> str:
    return ", ".join(filter(None, ["agrees" if each.passed else "DISAGREES", each.remark]))
