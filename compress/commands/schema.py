"""``compress schema``: what a recipe may say, for editors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compress.commands.output import as_json
from eval.errors import UserError
from eval.files.writing import atomic_write


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
