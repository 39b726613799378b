"""``compress demo``: the whole way on generated data, from few labels to a certified int8 export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(out: Annotated[Path, typer.Option(help="Folder for data and results.")] = Path("runs/demo")) -> None:
    """Fine-tune a teacher on few labels, distil half of its layers, export, measure and certify."""
    from compress.demo.demonstration import demonstrate

    typer.echo(demonstrate(out.resolve()))
