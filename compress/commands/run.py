"""``compress run``: a recipe from beginning to end."""

from __future__ import annotations

from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from compress.terminal.next_command import say_next, say_next_predict
from compress.terminal.output import plain, write_json
from eval.files.paths import place_beside

if TYPE_CHECKING:
    from compress.engine.pipeline import Run

RecipeFile = Annotated[Path, typer.Argument(metavar="RECIPE", help="A YAML file; 'compress init' writes one.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Change a value, such as training.epochs=1; may be repeated."),
]
Track = Annotated[
    list[str] | None,
    typer.Option("--track", metavar="TRACKER", help="Send curves to it, such as tensorboard; may be repeated."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def run(
    recipe: RecipeFile,
    out: Annotated[Path | None, typer.Option(help="Folder for the results; by default runs/NAME.")] = None,
    overrides: Overrides = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what the folder holds.")] = False,
    reuse: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Take over the steps of another run, up to the first that differs."),
    ] = None,
    track: Track = None,
    json: Json = False,
) -> None:
    """Run a recipe: prepare the teacher, build the student, apply the steps, export, measure, report."""
    from compress.recipe import read_recipe

    wanted = read_recipe(recipe, [*(overrides or ()), *tracking(track)])

    from compress.engine.pipeline import run_recipe

    done = run_recipe(wanted, out or Path("runs") / wanted.name, resume=resume, reuse=reuse)
    if json:
        write_json(
            {
                "folder": str(done.folder),
                "model": str(done.folder / "model"),
                "exports": {name: str(folder) for name, folder in done.exports.items()},
                "report": None if done.page is None else str(done.page),
                "results": [plain(result) for result in done.results],
                "notes": list(done.notes),
            }
        )
        return
    if done.results:
        from eval.report.console import to_text

        typer.echo(to_text(done.results))
    else:
        typer.echo(done.artifact.history())
    typer.echo(f"model: {done.folder / 'model'}")
    for name, folder in done.exports.items():
        typer.echo(f"{name}: {folder}")
    for note in done.notes:
        typer.echo(note)
    if done.page is not None:
        typer.echo(f"report: {done.page}")
    _say_next(done)


def _say_next(done: Run) -> None:
    """Say what comes after a run: its certificate, if it claims something; else a prediction; else an export."""
    from compress.export.runtime.manifest import MANIFEST
    from eval.kinds.kind_registry import kind_of

    runnable = [folder for folder in done.exports.values() if (folder / MANIFEST).is_file()]
    if (done.folder / "claim.json").is_file() and any(one.role == "final" and one.comparison for one in done.results):
        say_next("compress", "certify", done.folder, "--out", place_beside(done.folder, ".cert"))
    elif runnable:
        say_next_predict(runnable[0])
    else:
        target = "generator" if kind_of(done.artifact.task.kind).writes else "onnx"
        place = place_beside(done.folder, f"-{target}")
        say_next("compress", "export", done.folder / "model", "--to", target, "--int8", "--out", place)


def tracking(trackers: list[str] | None) -> list[str]:
    """Return the override that gives a recipe these trackers, if there are any."""
    return [f"track={dumps(trackers)}"] if trackers else []
