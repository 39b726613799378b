"""``compress check``: every error of a recipe, before any compute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from compress.commands.run import Json, Overrides, RecipeFile
from compress.terminal.next_command import after_check, say_next
from compress.terminal.output import write_json
from eval.errors import UserError

if TYPE_CHECKING:
    from compress.recipe import Recipe


def check(
    recipe: RecipeFile,
    overrides: Overrides = None,
    file_only: Annotated[
        bool, typer.Option("--file-only", help="Look at the file alone, not at the data and models that it names.")
    ] = False,
    json: Json = False,
) -> None:
    """Find every error of a recipe, its data and its models at once; steps only run on a few examples."""
    try:
        found = _look(recipe, overrides, file_only)
    except UserError as error:
        if json:
            write_json({"ok": False, "problems": list(error.problems)})
            raise typer.Exit(error.exit_code) from error
        raise
    if json:
        write_json({"ok": True, "problems": [], **found})
        return
    typer.echo(f"{recipe}: no errors found")
    for key, value in found.items():
        between = " " if key == "roles" else ", "  # of sentences
        typer.echo(f"{key}: {value if isinstance(value, str) else between.join(map(str, value)) or 'none'}")
    say_next(*after_check(recipe, overrides, file_only, several="together" in found))


def _look(recipe: Any, overrides: list[str] | None, file_only: bool) -> dict[str, Any]:
    from compress.recipe import read_recipe

    wanted = read_recipe(recipe, overrides or ())
    found: dict[str, Any] = {"name": wanted.name, "steps": [step.name for step in wanted.steps]}
    if file_only:
        return found
    if wanted.tasks:
        return found | _look_at_several(wanted)

    from compress.engine.preflight import foresee
    from eval.task import SELECT

    seen = foresee(wanted)
    if seen.task is not None:
        found["data"] = [f"{name} {len(split):,}" for name, split in seen.task.splits.items() if name != SELECT]
        skipped = sum(split.skipped for name, split in seen.task.splits.items() if name != SELECT)
        found["data"] += [f"{skipped:,} bad lines skipped"] if skipped else []
        found["roles"] = [] if seen.roles is None else list(seen.roles.notes)
        found["labels"] = list(seen.task.spec.labels)
    if seen.prepared is not None:
        found["student"] = f"{seen.prepared.student.size().parameters:,} parameters"
    return found


def _look_at_several(recipe: Recipe) -> dict[str, Any]:
    from compress.engine.several_tasks import preview_together

    tasks, models = preview_together(recipe)
    parts = {name: [f"{split} {len(found):,}" for split, found in task.splits.items()] for name, task in tasks.items()}
    found: dict[str, Any] = {f"tasks.{name}": splits for name, splits in parts.items()}
    shared = {id(p): p.numel() for model in models.values() for p in model.model.parameters()}
    return found | {"together": f"{sum(shared.values()):,} parameters"}
