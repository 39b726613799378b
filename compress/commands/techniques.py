"""``compress list``, ``show`` and ``schema``: what there is, what it takes, and what a recipe may say."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from compress.commands.run import Json
from compress.terminal.output import as_json, is_narrow, prose, table, write_json
from eval.errors import UserError
from eval.files.writing import atomic_write


def list_techniques(
    json: Json = False, pairs: Annotated[bool, typer.Option("--pairs", help="Show which can follow which.")] = False
) -> None:
    """List the techniques: what each needs, what it reduces, and its paper; or which can follow which."""
    from compress.registry import REGISTRY, describe, names

    if pairs:
        from compress.pairs import legend, matrix, refusals

        if json:
            write_json(refusals())
            return
        typer.echo("\n".join(("Row: the first of two steps. Column: the second.", "", *matrix(), "", *legend())))
        return
    found, problems = [], REGISTRY.clashes()
    for name in names():
        try:
            found.append(describe(name))
        except UserError as error:  # of one package; the others are listed all the same
            problems += error.problems
    if json:
        write_json([asdict(description) for description in found])
    else:
        rows = [
            (each.name, each.summary, ", ".join(each.needs) or "-", ", ".join(each.reduces) or "-", each.source)
            for each in found
        ]
        table(("technique", "what it does", "needs", "reduces", "source"), rows, spare=("reduces", "source"))
    if problems:
        raise UserError(*problems)


def show_technique(
    name: Annotated[str, typer.Argument(metavar="TECHNIQUE", help="A name from 'compress list'.")], json: Json = False
) -> None:
    """Show one technique: how it works, its fields with their defaults, its formula and source."""
    from compress.registry import describe

    found = describe(name)
    if json:
        write_json(asdict(found))
        return
    prose(f"{found.name} (version {found.version})\n\n{found.summary}\n\n{found.text}\n\n")
    if not found.fields:
        typer.echo("It takes no fields.")
    elif is_narrow():
        for field in found.fields:
            typer.echo(field.name)
            prose(f"{field.description}\nTakes {field.type}; default: {field.default}.", indent=4)
    else:
        rows = [(field.name, field.type, field.default, field.description) for field in found.fields]
        table(("field", "takes", "default", "meaning"), rows)
    prose(f"\nneeds: {', '.join(found.needs) or 'nothing beside the model'}")
    prose(f"reduces: {', '.join(found.reduces) or 'nothing by itself'}")
    prose(f"trains: {'yes' if found.trains else 'no'}; can be trained afterwards: {'no' if found.freezes else 'yes'}")
    prose(f"source: {found.source}")
    if found.package:
        prose(f"package: {found.package}")


def schema(
    out: Annotated[Path | None, typer.Option(help="File to write; without it the schema is printed.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if there is one.")] = False,
) -> None:
    """Show the JSON Schema of recipes: every field of every technique, with its meaning, type, range and default.

    An editor with a YAML language server (VS Code, Neovim …) completes and checks a recipe whose first line is
    '# yaml-language-server: $schema=recipe.schema.json'.
    """
    from compress.recipe.json_schema import recipe_json_schema

    if out is not None and out.exists() and not force:
        raise UserError(f"{out}: is there already; --force replaces it, --out names another file")
    text = as_json(recipe_json_schema())
    if out is None:
        typer.echo(text)
        return
    if not out.parent.is_dir():
        raise UserError(f"{out}: its folder does not exist")
    atomic_write(out, f"{text}\n".encode())
    typer.echo(f"wrote {out}; first line of a recipe: # yaml-language-server: $schema={out}")
