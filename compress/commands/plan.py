"""``compress plan``: sizes, updates and a rough time."""

from __future__ import annotations

from dataclasses import asdict

import typer

from compress.commands.output import duration, megabytes, table, write_json
from compress.commands.run import Json, Overrides, RecipeFile


def plan(recipe: RecipeFile, overrides: Overrides = None, json: Json = False) -> None:
    """Predict what a recipe costs: sizes of the models, updates of each step, and a rough time on this machine."""
    from compress.recipe import read_recipe

    wanted = read_recipe(recipe, overrides or ())

    from compress.plan import make_plan

    found = make_plan(wanted)
    if json:
        write_json({"name": wanted.name, **asdict(found), "seconds": found.seconds})
        return
    largest = found.sizes[0]
    table(
        ("model", ">parameters", ">MB", ">million MACs", ">of the first"),
        [
            (
                row.name,
                f"{row.parameters:,}",
                megabytes(row.bytes),
                f"{row.macs / 1e6:,.1f}",
                f"{row.parameters / largest.parameters:.0%}",
            )
            for row in found.sizes
        ],
    )
    typer.echo()
    table(
        ("step", ">inputs", ">tokens each", ">updates", ">rough time"),
        [
            (
                row.name,
                f"{row.rows:,}" if row.rows else "-",
                f"{row.tokens:.0f}" if row.rows else "-",
                f"{row.updates:,}" if row.updates else "-",
                duration(row.seconds),
            )
            for row in found.steps
        ],
    )
    typer.echo(f"\nall together about {duration(found.seconds)} on this machine, measuring and exporting not counted")
