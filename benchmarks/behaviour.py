"""Keep how a student behaves beside its teacher: on perturbed texts, and which words of a text it weighs.

    compress eval STUDENT --data DATA --against TEACHER --stress --json stressed.json
    compress eval STUDENT --data DATA --against TEACHER --attributions --json explained.json
    python -m benchmarks.behaviour stressed.json explained.json --name chain-agnews-behaviour --page combined

A file has the results of both models, the student's last; no score is kept here but those of the perturbed texts.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.archive import keep
from benchmarks.markdown_table import markdown_table
from benchmarks.results import DOCS, fill
from benchmarks.searches import stressed
from eval.cost.machine import in_one_line
from eval.report.attributed import attribution_headings, attribution_rows, attribution_sentences
from eval.result import Result

NAMES = ("chain-agnews-behaviour",)
TOLD = ("name", "task", "split", "digest", "examples", "scores", "comparison", "stress", "attributions", "machine")
"""What is kept of a result, where it has it."""


def report(found: Mapping[str, Any]) -> str:
    """Return the part of the page: for each result its tables, each with what it comes to in words."""
    results = [Result.model_validate(values) for values in found["results"]]
    parts = [part for result in results for part in (*_stressed(result), *_explained(result))]
    machines = dict.fromkeys(in_one_line(dict(result.machine)) for result in results)
    return "\n\n".join([*parts, f"{'; '.join(machines)}; commit {found['commit']}."])


def _stressed(result: Result) -> list[str]:
    return stressed(result.stress, result.name, "teacher") if result.stress and result.comparison else []


def _explained(result: Result) -> Iterator[str]:
    if result.attributions and result.comparison:
        named = result.model_copy(update={"comparison": result.comparison.model_copy(update={"reference": "teacher"})})
        yield ". ".join(attribution_sentences(named)) + "."
        yield markdown_table([attribution_headings(named), *attribution_rows(named)])


def main() -> None:
    """Keep the results, and write them into the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, help="what compress eval --json wrote")
    parser.add_argument("--name", choices=NAMES, default=NAMES[0])
    parser.add_argument("--page", default="combined")
    given = parser.parse_args()
    students = [json.loads(file.read_text(encoding="utf-8"))[-1] for file in given.files]
    kept = [{name: one[name] for name in TOLD if name in one} for one in students]
    fill(DOCS / f"{given.page}.md", given.name, report(keep(given.name, {"results": kept})))


if __name__ == "__main__":
    main()
