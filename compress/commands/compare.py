"""``compress compare``: several finished runs in one table and on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compress.commands.run import Json
from compress.terminal.output import table, write_json
from eval.errors import UserError

Runs = Annotated[list[Path], typer.Argument(metavar="RUN …", help="Folders that 'compress run' wrote, such as runs/*.")]


def compare(
    runs: Runs,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the comparison as one HTML page.")] = None,
    json: Json = False,
) -> None:
    """Compare finished runs: what each ships, what that costs, which settings differ, which answers differ.

    Runs that were measured on other examples or against another teacher are listed, but not ranked together. Folders
    that hold no finished run are left out, which is said.
    """
    if out is not None and out.is_dir():
        raise UserError(f"--out: {out} is a folder; name an HTML file")

    from compress.comparing.finished_run import examples_of, read_runs
    from compress.comparing.recipe_differences import differing_settings
    from eval.certificate.canonical import without_nan
    from eval.report.runs import cells, grouped, headings, plain, told_apart

    found, left_out = read_runs(runs)
    examples = {}
    for run in found:
        digest = run.figures.result.digest
        if digest not in examples and (known := examples_of(run)) is not None:
            examples[digest] = known
    groups = grouped([run.figures for run in found], examples)
    recipes = {run.figures.name: run.recipe for run in found}
    names = [run.name for group in groups for run in group.runs]
    settings = differing_settings([recipes[name] for name in names])
    notes = [*left_out, *told_apart(groups)]
    if out is not None:
        from eval.report.runs_page import write_runs_page

        write_runs_page(out, groups, settings, notes)
    if json:
        given = {path: dict(zip(names, values, strict=True)) for path, values in settings.items()}
        write_json(without_nan({"groups": [plain(group) for group in groups], "settings": given, "notes": notes}))
        return
    for note in notes:
        typer.echo(f"{note}\n")
    for group in groups:
        right = (f">{heading}" if number > 1 else heading for number, heading in enumerate(headings([group])))
        table([*right], map(cells, group.runs), title=group.title)
        if len(group.runs) > 1:
            typer.echo(f"\nNo other run beats {', '.join(group.best)} in both score and {group.ranked_by}.")
        if group.changed is not None:
            typer.echo(f"{group.changed.said}.")
        typer.echo("\n".join((*group.notes, "")))
    if settings:
        table(["setting", *names], ([path, *values] for path, values in settings.items()), title="Settings that differ")
    if out is not None:
        typer.echo(f"\npage: {out}")
