"""Time variants of a training step alternately; keep what was found, and make its table."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from benchmarks.archive import keep
from benchmarks.markdown_table import markdown_table
from benchmarks.results import DOCS, fill
from eval.cost.machine import in_one_line


def timed_in_rounds(ways: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each variant in each round; a first round that warms up is left out.

    Args:
        ways: Name -> a function that runs the variant and returns its seconds.
        rounds: How many rounds; in each, every variant runs once.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, run in ways.items():
            taken = run()
            if number:
                seconds[name].append(taken)
    return seconds


def arguments(told: str) -> argparse.ArgumentParser:
    """Return the parser of a program that times in rounds: ``--rounds``, and ``--fill`` for the page."""
    parser = argparse.ArgumentParser(description=told.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--fill", action="store_true", help="keep the figures and write docs/results/training.md")
    return parser


def tell(name: str, found: Mapping[str, Any], write: bool) -> None:
    """Print the table; write it into docs/results/training.md and its data into benchmarks/results if asked.

    Args:
        name: Name of the file in benchmarks/results and of the place on the page.
        found: ``seconds``, variant -> seconds of each round; ``batches``, optimizer steps of a round; ``ratios``, what
            is divided by what -> the ratio of each round; ``others``, further figures by name, optional.
        write: Whether to write.
    """
    print(table(found))
    if write:
        fill(DOCS / "training.md", name, report(keep(name, found)))


def report(found: Mapping[str, Any]) -> str:
    """Return the tables of what a program kept, and what it was measured on."""
    return f"{table(found)}\n\n{in_one_line(found['machine'])}; commit {found['commit']}."


def table(found: Mapping[str, Any]) -> str:
    """Return two tables: milliseconds a batch of each variant, and ratios; medians over rounds, (least to most)."""
    times = {
        name: _spread([1000 * value / found["batches"] for value in values], ".1f")
        for name, values in found["seconds"].items()
    }
    others = {name: _spread(values, ".3f") for name, values in found["ratios"].items()} | found.get("others", {})
    tables = [
        markdown_table([("variant", "ms a batch"), *times.items()]),
        markdown_table([("what", "median over the rounds (least to most)"), *others.items()]),
    ]
    return "\n\n".join([*tables, f"{len(next(iter(found['seconds'].values())))} rounds of {found['batches']} batches."])


def _spread(values: list[float], form: str) -> str:
    return f"{median(values):{form}} ({min(values):{form}} to {max(values):{form}})"
