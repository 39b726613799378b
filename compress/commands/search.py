"""``compress search``: the smallest or fastest model within a budget."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from compress.commands.run import Json
from compress.terminal.output import write_json

if TYPE_CHECKING:
    from compress.search.budget import Budget
    from compress.search.searching import Observer

BudgetFile = Annotated[Path, typer.Argument(metavar="BUDGET", help="A YAML file; docs/search.md says what is in it.")]


def search(
    budget: BudgetFile,
    out: Annotated[Path | None, typer.Option(help="Folder for the results; by default runs/NAME.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with what the folder holds, or help another process there.")
    ] = False,
    storage: Annotated[
        str | None, typer.Option(metavar="URL", help="A database for Optuna, shared by several machines.")
    ] = None,
    json: Json = False,
) -> None:
    """Search for the smallest or fastest model within a budget, and look at the winner on the test split once."""
    from compress.search.budget import read_budget

    wanted = read_budget(budget)

    from compress.search.searching import search as run_search

    with _live_table(wanted) as observe:
        found = run_search(wanted, out or Path("runs") / wanted.name, resume=resume, storage=storage, observe=observe)
    facts = read_facts(found.folder)
    if json:
        write_json({"folder": str(found.folder), "page": str(found.page), **facts})
        return
    for sentence in facts["outcome"]:
        typer.echo(sentence)
    typer.echo(facts["spent"])
    for winner in found.winners:
        typer.echo(f"winner: {winner.folder}")
        if winner.certificate is not None:
            typer.echo(f"certificate: {winner.certificate}")
    typer.echo(f"page: {found.page}")


def read_facts(folder: Path) -> dict[str, Any]:
    """Return what ``search.json`` holds."""
    from eval.files.json_text import read_json

    facts: dict[str, Any] = read_json(folder / "search.json")
    return facts


@contextmanager
def _live_table(budget: Budget) -> Iterator[Observer | None]:
    """Show a line for each candidate on a terminal while the search runs; nothing where nobody looks."""
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    from compress.search.search_page import fate, shown_cost
    from compress.search.standing import front

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with Live(console=console, refresh_per_second=1) as live:

        def observe(standings: Any) -> None:
            table, kept = Table(box=None, pad_edge=False), [one.key for one in front(standings, budget)]
            for heading in ("candidate", "bytes", *(["ms"] if budget.times else []), "to the teacher", "state"):
                table.add_column(heading, no_wrap=heading != "state")
            for one in [one for one in standings if not one.dropped][-console.height + 4 :]:
                cells = [one.key, shown_cost("bytes", one) if one.costs else "-"]
                cells += [shown_cost("p50_ms", one) if one.costs else "-"] if budget.times else []
                table.add_row(*cells, one.told, f"{fate(one, budget, kept)}: {one.label}")
            live.update(table)

        yield observe
