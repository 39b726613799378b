"""``compress plan``: sizes, optimizer steps and a rough time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from compress.commands.run import Json, Overrides, RecipeFile
from compress.terminal.next_command import say_next, set_again
from compress.terminal.output import duration, megabytes, table, write_json
from eval.cost.machine import cpu_features, int8_is_fast, int8_note

if TYPE_CHECKING:
    from compress.recipe import Recipe

WORTH_SAYING = 1.2
"""Speedup from which another number format is named."""


def plan(recipe: RecipeFile, overrides: Overrides = None, json: Json = False) -> None:
    """Predict what a recipe costs: sizes of the models, optimizer steps of each, and a rough time on this machine."""
    from compress.recipe import read_recipe

    wanted = read_recipe(recipe, overrides or ())

    from compress.engine.cost_plan import make_plan

    found = make_plan(wanted)
    note = slow_int8(wanted, cpu_features())
    if json:
        write_json({"name": wanted.name, **asdict(found), "seconds": found.seconds, "int8": note or None})
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
        ("step", ">inputs", ">tokens each", ">optimizer steps", ">rough time"),
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
    for proof in found.proof:
        typer.echo(proof)
    if found.bf16_speedup is not None and found.bf16_speedup > WORTH_SAYING:
        typer.echo(
            f"this processor multiplies {found.bf16_speedup:.1f} x as fast in bf16 as in float32, timed here; "
            "training: {precision: bf16} makes use of it"
        )
    if note:
        typer.echo(note)
    say_next("compress", "run", recipe, *set_again(overrides))


def slow_int8(recipe: Recipe, features: Iterable[str]) -> str:
    """Return a sentence if a recipe exports int8 and these processor features do not make it faster; else nothing."""
    quantized = any("export_bytes" in step.reduces for step in recipe.steps)
    if int8_is_fast(features) or not (quantized or any(block.settings.int8 for block in recipe.export)):
        return ""
    return f"int8 exports will be smaller, but not much faster on this processor ({int8_note(features)})"
