"""``compress recipes``: the recipes that ship with the toolkit, listed or copied."""

from __future__ import annotations

import re
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from compress.commands.run import Json
from compress.terminal.output import table, write_json
from eval.errors import UserError, did_you_mean
from eval.files.writing import atomic_write

SHIPPED = Path(__file__).parents[1] / "recipes"
"""The folder of the recipes."""
COMMAND = "#   "
"""Begins a line of a recipe's comment that is a command."""
DATA = re.compile(r"\$\{COMPRESS_DATA:-data\}/([\w.-]+)")
"""A data set that a recipe reads."""


@dataclass(frozen=True)
class Shipped:
    """A recipe that ships with the toolkit.

    Attributes:
        name: What it is called here; its file's path without ``.yaml``.
        summary: The first sentence of its comment.
        data: What it reads, below ``COMPRESS_DATA`` or else the folder ``data``.
        commands: The commands that run it, as its comment has them.
    """

    name: str
    summary: str
    data: tuple[str, ...]
    commands: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> Shipped:
        """Read what a recipe says of itself."""
        text = path.read_text(encoding="utf-8")
        comment = [line for line in text[: text.index("\nname:")].splitlines() if line.startswith("#")]
        prose = " ".join(line.removeprefix("# ") for line in comment if not line.startswith(COMMAND))
        return cls(
            name=path.relative_to(SHIPPED).with_suffix("").as_posix(),
            summary=re.split(r"\.(?: (?=[A-Z])|$)|; ", prose)[0],
            data=tuple(sorted(set(DATA.findall(text)))),
            commands=tuple(line.removeprefix(COMMAND) for line in comment if line.startswith(COMMAND)),
        )


def recipes(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The recipe to copy; without it all are listed.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File to write; by default NAME.yaml in this folder.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if there is one.")] = False,
    json: Json = False,
) -> None:
    """List the recipes that ship with the toolkit, or copy one to change and run."""
    found = {shipped.name: shipped for shipped in map(Shipped.read, sorted(SHIPPED.rglob("*.yaml")))}
    if name is not None:
        _copy(name.removesuffix(".yaml"), found, out, force)
    elif out is not None or force:
        raise UserError("--out, --force: which recipe shall be copied? 'compress recipes' lists them")
    elif json:
        write_json([asdict(shipped) for shipped in found.values()])
    else:
        rows = [(shipped.name, shipped.summary, " ".join(shipped.data) or "-") for shipped in found.values()]
        table(("recipe", "what it does", "data, below COMPRESS_DATA"), rows)
        typer.echo("\n'compress recipes NAME' copies one; docs/data.md says what data has to look like")


def _copy(name: str, found: dict[str, Shipped], out: Path | None, force: bool) -> None:
    """Write a recipe to a file.

    Raises:
        UserError: There is no such recipe, or the file is there already or cannot be written.
    """
    if name not in found:
        raise UserError(f"NAME: there is no recipe {name!r}{did_you_mean(name, found)}")
    own = f"{Path(name).name}.yaml"
    out = out or Path(own)
    if out.exists() and not force:
        raise UserError(f"{out}: is there already; --force replaces it, --out names another file")
    if not out.parent.is_dir():
        raise UserError(f"{out}: its folder does not exist")
    atomic_write(out, (SHIPPED / f"{name}.yaml").read_bytes())
    typer.echo(f"wrote {out}")
    for command in found[name].commands:
        words = (shlex.quote(str(out)) if word == own else word for word in command.split(" "))
        typer.echo(f"next: {' '.join(words)}")
