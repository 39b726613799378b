"""``compress search``: the smallest or fastest model within a budget."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from compress.commands.run import Json
from compress.terminal.messages import live_region
from compress.terminal.next_command import say_next_predict
from compress.terminal.output import write_json

if TYPE_CHECKING:
    from compress.search.budget import Budget
    from compress.search.searching import Observer

FEWEST = 5
"""Candidates that are listed even in a low window."""
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

    observe = _live_table(wanted)
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
    if export := next(filter(None, (winner.export for winner in found.winners)), None):
        say_next_predict(export)


def read_facts(folder: Path) -> dict[str, Any]:
    """Return what ``search.json`` holds."""
    from eval.files.json_text import read_json

    facts: dict[str, Any] = read_json(folder / "search.json")
    return facts


def _live_table(budget: Budget) -> Observer | None:
    """Show a line for each candidate above the live region of a terminal; nothing where there is none."""
    from rich.table import Table
    from rich.text import Text

    from compress.search.search_page import fate, shown_cost
    from compress.search.standing import front

    region = live_region()
    if region is None:
        return None
    room = max(FEWEST, region.console.height // 2)

    def observe(standings: Any) -> None:
        table, kept = Table(box=None, pad_edge=False), [one.key for one in front(standings, budget)]
        for heading in ("candidate", "bytes", *(["ms"] if budget.times else []), "to the teacher", "state"):
            table.add_column(heading, no_wrap=True, overflow="ellipsis")
        for one in [one for one in standings if not one.dropped][-room:]:
            cells = [one.key, shown_cost("bytes", one) if one.costs else "-"]
            cells += [shown_cost("p50_ms", one) if one.costs else "-"] if budget.times else []
            table.add_row(*map(Text, (*cells, one.told, f"{fate(one, budget, kept)}: {one.label}")))
        region.show_above(table)

    return observe
