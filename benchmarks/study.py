"""Run a study: many compression methods, the same data, teacher and seeds, one table.

    COMPRESS_DATA=… COMPRESS_BASE=… python -m benchmarks.study benchmarks/studies/NAME.yaml --out runs/NAME

A study is a YAML file: a ``recipe`` that all rows share, ``rows`` that each change some of its blocks, the ``seeds``,
and the rows that are the ``baselines``. Runs that exist in the output folder are not repeated, and seeds are the outer
loop, so an interrupted study has every row at its first seed before any at its second. The table names a row that
fails. ``like``, of the study or of one row, takes the blocks of a recipe or of another study, in which ``recipe`` then
changes some, and ``rows_of`` steps and training of rows of other studies: the name of a file -> rows. ``plots`` draw
rows as points of lines: the name of a file -> ``x``, the label of what varies, and ``lines``, name -> value of x ->
row; ``--plots FOLDER`` writes them for light and, as NAME-dark.svg, for dark pages.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from compress.artifact.artifact import load
from compress.engine.pipeline import run_recipe
from compress.reading.yaml_places import read_yaml
from compress.recipe import Recipe, recipe_from_plain
from eval.errors import CompressError
from eval.measurement import pair
from eval.proof.many_comparisons import holm
from eval.result import Result
from eval.result_values import Comparison

logger = logging.getLogger("benchmarks.study")

EXPORTS = ("onnx-int8", "onnx")
"""The export whose size and speed the table shows: the first of these that exists."""
MISSING = "not run yet"
"""The score of a row without runs."""
LAST = "results.json"
"""The file that a run writes last: a folder that has it is finished."""
FAILURE = ".failure.txt"
"""Suffix of the file beside a run that says why the run failed; it is tried again."""


@dataclass(frozen=True)
class Study:
    """The rows to compare, and what they share.

    Attributes:
        name: Names the runs.
        recipe: Blocks that all rows share.
        rows: Name of a row -> the blocks that it changes, and its own ``seeds`` if it has fewer.
        seeds: Seeds of every row.
        baselines: Rows that the others are compared with, one column each.
        plots: Name -> ``{"x": label, "lines": {name: {x: row}}}``.
    """

    name: str
    recipe: dict[str, Any]
    rows: dict[str, dict[str, Any]]
    seeds: tuple[int, ...]
    baselines: tuple[str, ...]
    plots: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Study:
        """Read a study; variables such as ``${COMPRESS_DATA}`` are expanded as in a recipe."""
        document = read_yaml(path.read_text(encoding="utf-8"), str(path))
        if document.problems:
            raise SystemExit("\n".join(document.problems))
        values = dict(document.data)
        rows = {}
        for name, taken in values.get("rows_of", {}).items():
            known = cls.read(path.with_name(name)).rows
            rows |= {row: {key: known[row][key] for key in ("training", "steps") if key in known[row]} for row in taken}
        own = values.get("recipe", {})
        for name, given in values.get("rows", {}).items():
            blocks = _blocks(path.parent / given["like"]) | own if "like" in given else {}
            rows[name] = blocks | {key: value for key, value in given.items() if key != "like"}
        baselines = values.get("baselines", ["labels only"])
        recipe = (_blocks(path.parent / values["like"]) if "like" in values else {}) | own
        return cls(path.stem, recipe, rows, tuple(values["seeds"]), tuple(baselines), values.get("plots", {}))

    def recipe_of(self, row: str, seed: int) -> Recipe:
        """Return the recipe of one row with one seed."""
        own = {key: value for key, value in self.rows[row].items() if key != "seeds"}
        values = self.recipe | own | {"name": _plain(f"{self.name} {row}"), "seed": seed}
        return recipe_from_plain(values, f"{self.name}, {row}")

    def seeds_of(self, row: str) -> tuple[int, ...]:
        """Return the seeds of one row."""
        return tuple(self.rows[row].get("seeds", self.seeds))


def _blocks(path: Path) -> dict[str, Any]:
    """Return the blocks that the rows of a study share, or those of a recipe."""
    values = read_yaml(path.read_text(encoding="utf-8"), str(path)).data
    return (
        Study.read(path).recipe if "seeds" in values else {key: values[key] for key in values.keys() - {"name", "seed"}}
    )


def _plain(name: str) -> str:
    return "".join(c if c.isalnum() or c in " .+-_" else "-" for c in name)


@dataclass
class Outcome:
    """The results of the runs of one row, one per seed.

    Attributes:
        students: Results of the torch models.
        exports: Results of their exports, of the int8 one if it exists.
        teachers: Results of the references that they are compared with.
        seconds: Time of all steps, training included.
        failure: Why the row failed, or empty.
    """

    students: list[Result] = field(default_factory=list)
    exports: list[Result] = field(default_factory=list)
    teachers: list[Result] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    failure: str = ""

    @property
    def missing(self) -> bool:
        """Whether there is neither a result nor a reason why not."""
        return not (self.students or self.failure)

    def add(self, recipe: Recipe, folder: Path) -> None:
        """Add one seed from the folder of its run."""
        named = {result.name: result for result in map(Result.load, sorted((folder / "results").iterdir()))}
        self.students.append(named[recipe.name].model_copy(update={"training_seed": recipe.seed}))
        self.exports += [named[name] for name in EXPORTS if name in named][:1]
        compared = self.students[-1].comparison
        self.teachers += [named[compared.reference]] if compared and compared.reference in named else []
        self.seconds.append(sum(record.total_seconds for record in load(folder / "model").lineage))


def run_study(
    study: Study, out: Path, only: str = "", seeds: int | None = None, train: bool = True
) -> dict[str, Outcome]:
    """Run every row with every seed, or find the existing runs.

    Args:
        study: The rows to compare.
        out: Folder of the runs.
        only: Run the row of this name, or else the rows whose name contains it.
        seeds: Run this many of the first seeds.
        train: False runs nothing and reads only existing runs.
    """
    chosen = [only] if only in study.rows else [row for row in study.rows if only in row]
    found = {row: Outcome() for row in chosen}
    for seed in study.seeds[:seeds]:
        for row, outcome in found.items():
            if seed not in study.seeds_of(row) or outcome.failure:
                continue
            recipe, folder = study.recipe_of(row, seed), out / f"{_plain(row)}-{seed}"
            failure = folder.with_name(folder.name + FAILURE)  # beside the folder, which may be another recipe's
            try:
                if train and not (folder / LAST).is_file():
                    logger.info("%s, seed %d", row, seed)
                    run_recipe(recipe, folder, resume=True)
                if (folder / LAST).is_file():
                    outcome.add(recipe, folder)
                elif failure.is_file():
                    outcome.failure = failure.read_text(encoding="utf-8")
            except CompressError as error:
                outcome.failure = " ".join(str(error).split())[:200]
                logger.error("%s, seed %d: %s", row, seed, error)
                failure.parent.mkdir(parents=True, exist_ok=True)
                failure.write_text(outcome.failure, encoding="utf-8")
    return found


def table(study: Study, found: dict[str, Outcome]) -> str:
    """Return the study as a Markdown table, and below it how many comparisons stand in it.

    A difference is bold if it is significant at 5%, on either side, after Holm's correction for all of the table.
    """
    compared = _comparisons(study, found)
    corrected = holm([min(1.0, 2 * min(one.p_value, 1 - one.p_value)) for one in compared.values()])
    against = {
        place: _difference(one, p_value < 0.05)
        for (place, one), p_value in zip(compared.items(), corrected, strict=True)
    }
    heads = ["method", "score", "% of teacher score [95%]", *(f"against {name} [95%]" for name in study.baselines)]
    heads += ["parameters", "MACs at 128", "MB", "training s"]
    heads += ["export", "export score", "export MB", "speedup, batch 1"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    lines += [f"| {row} | {' | '.join(_cells(study, row, found[row], against))} |" for row in found]
    if len(compared) > 1:
        lines += [
            "",
            f"{len(compared)} comparisons with a baseline; bold: p < 5% after Holm's correction for all of them.",
        ]
    return "\n".join(lines)


def _comparisons(study: Study, found: dict[str, Outcome]) -> dict[tuple[str, str], Comparison]:
    """Return each row against each baseline, over the seeds that both have; those without an interval are left out."""
    known = {}
    for row, outcome in found.items():
        for baseline in study.baselines:
            base = found.get(baseline)
            if row == baseline or base is None:
                continue
            seeds = {result.training_seed for result in base.students}
            both = [result for result in outcome.students if result.training_seed in seeds]
            of_them = {result.training_seed for result in both}
            if both:
                one = pair(both, [result for result in base.students if result.training_seed in of_them])
                known |= {(row, baseline): one} if isfinite(one.p_value) else {}
    return known


def _cells(study: Study, row: str, outcome: Outcome, against: dict[tuple[str, str], str]) -> list[str]:
    if not outcome.students:
        return [MISSING if outcome.missing else f"not run: {outcome.failure}"] + [""] * (9 + len(study.baselines))
    scores = [result.score for result in outcome.students]
    spread = f" ± {stdev(scores):.4f}" if len(scores) > 1 else ""
    size = outcome.students[0].size
    cells = [f"{mean(scores):.4f}{spread} ({len(scores)})", _retained(outcome.students)]
    cells += [against.get((row, baseline), "") for baseline in study.baselines]
    cells += [f"{size.parameters / 1e6:.1f} M", f"{size.macs / 1e6:.0f} M"] if size else ["", ""]
    cells.append(f"{(outcome.students[0].bytes or 0) / 1e6:.1f}")
    cells.append(f"{mean(outcome.seconds):.0f}" if any(outcome.seconds) else "")  # empty if nothing is trained
    if not outcome.exports:
        return [*cells, "none", "", "", ""]
    speed = [ratio for result in outcome.exports if (ratio := result.speedup())]
    cells.append("int8" if outcome.exports[0].name == EXPORTS[0] else "float32")
    cells.append(f"{mean(result.score for result in outcome.exports):.4f}")
    cells.append(f"{(outcome.exports[0].bytes or 0) / 1e6:.1f}")
    cells.append(f"{mean(speed):.1f}" if speed else "")
    return cells


def _retained(results: list[Result]) -> str:
    compared = [result for result in results if result.comparison is not None]
    if not compared:
        return ""
    if len(compared) == 1 and compared[0].comparison is not None:
        retained = compared[0].comparison.retention
        return f"{retained.value:.1%} [{retained.low:.1%}, {retained.high:.1%}]"
    values = [result.comparison.retention.value for result in compared if result.comparison is not None]
    return f"{mean(values):.1%} (seeds {min(values):.1%} to {max(values):.1%})"


def _difference(compared: Comparison, significant: bool) -> str:
    difference, mark = compared.difference, "**" if significant else ""
    return f"{mark}{difference.value:+.4f}{mark} [{difference.low:+.4f}, {difference.high:+.4f}]"


def draw_plots(study: Study, found: dict[str, Outcome], folder: Path) -> None:
    """Write each plot of the study whose rows all ran or failed, for light and for dark pages."""
    from eval.report.plots import lines, render, write_themes

    folder.mkdir(parents=True, exist_ok=True)
    run = {row: outcome.students for row, outcome in found.items() if outcome.students}
    for name, plot in study.plots.items():
        known = {
            line: [(float(x), mean(result.score for result in run[row])) for x, row in rows.items() if row in run]
            for line, rows in plot["lines"].items()
        }
        teacher = next((result for outcome in found.values() for result in outcome.teachers), None)
        drawn = {line: points for line, points in known.items() if points}
        rows = [row for points in plot["lines"].values() for row in points.values()]
        if teacher is None or not drawn or any(row not in found or found[row].missing for row in rows):
            continue
        whole = all(x == int(x) for points in drawn.values() for x, _ in points)
        picture = render(lines(drawn, plot["x"], teacher.metric, ("teacher", teacher.score), whole))
        write_themes(folder, name, picture)


def main() -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("study", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="the row of this name, or else rows whose name contains it")
    parser.add_argument("--seeds", type=int, help="run only this many of the first seeds")
    parser.add_argument("--table", action="store_true", help="run nothing; print existing results")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw the study's plots there")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    study = Study.read(arguments.study)
    found = run_study(study, arguments.out, arguments.only, arguments.seeds, not arguments.table)
    if study.recipe.get("evaluate") is not None:
        print(table(study, found))
    if arguments.plots is not None:
        draw_plots(study, found, arguments.plots)


if __name__ == "__main__":
    main()
