"""Run a study: many compression methods, the same data, teacher and seeds, one table.

    COMPRESS_DATA=… COMPRESS_BASE=… python -m benchmarks.study benchmarks/studies/NAME.yaml --out runs/NAME

A study is a YAML file: a ``recipe`` that all rows share, ``rows`` that each change some of its blocks, the ``seeds``,
and the rows that are the ``baselines``. ``like``, of the study or of one row, takes the blocks of a recipe or of
another study, in which ``recipe`` then changes some, and ``rows_of`` steps and training of rows of other studies: the
name of a file -> rows. A study that is like another and has no rows has its rows, seeds, baselines and plots too.
``each``, name -> blocks, makes every row once for each of them, as ``ROW, NAME``: of a block only the named fields
change, and such a row is compared with baselines of the same name. ``plots`` draw rows as points of lines with
intervals: the name of a file -> ``x``, the label of what varies, ``lines``, name -> value of x -> row, and ``log`` for
a logarithmic axis; ``--plots FOLDER`` writes them for light and, as NAME-dark.svg, for dark pages. A plot that is
called after its study is called after the study that is like it, too.

Each finished run becomes a record in benchmarks/results (``benchmarks.archive``), and the table is made from the
records alone; it names a row that fails. A row that has a record of the same recipe is not run again; ``--again`` runs
it if its folder is not there, for studies that start from its model. Seeds are the outer loop, so an interrupted study
has every row at its first seed before any at its second.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal

from benchmarks.archive import Archive, Run, commit, digest_of, plain
from compress.artifact.artifact import load
from compress.engine.pipeline import run_recipe
from compress.reading.yaml_places import read_yaml
from compress.recipe import Recipe, recipe_from_plain
from eval.cost.machine import in_one_line
from eval.errors import CompressError
from eval.measurement import pair
from eval.proof.many_comparisons import holm
from eval.proof.paired_predictions import paired_scores
from eval.proof.paired_statistics import Interval
from eval.proof.score_interval import score_interval
from eval.result import Result
from eval.result_values import Comparison

logger = logging.getLogger("benchmarks.study")

EXPORTS = ("onnx-int8", "onnx")
"""The export whose size and speed the table shows: the first of these that exists."""
MISSING = "not measured yet"
"""What is said of rows without a record."""
NOTHING = {"", "none"}
"""Cells that say nothing: a column of them is left out."""
LAST = "results.json"
"""The file that a run writes last: a folder that has it is finished."""
TOLD = ("ACCELERATE_MIXED_PRECISION", "OMP_NUM_THREADS")
"""Variables that change a result or its time, and so stand in its record."""


class _Names(dict[str, str]):
    """An environment in which every variable is its own name: what a study says, whatever machine reads it."""

    def __missing__(self, name: str) -> str:
        return f"${{{name}}}"

    def __contains__(self, name: object) -> bool:
        return True

    def get(self, name: str, default: Any = None) -> Any:
        return self[name]


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
        each: Names that rows end in, where every row was made for each of them.
        digests: Row -> digest of its recipe before variables are expanded; records of another one are left out.
    """

    name: str
    recipe: dict[str, Any]
    rows: dict[str, dict[str, Any]]
    seeds: tuple[int, ...]
    baselines: tuple[str, ...]
    plots: dict[str, dict[str, Any]] = field(default_factory=dict)
    each: tuple[str, ...] = ()
    digests: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Study:
        """Read a study; variables such as ``${COMPRESS_DATA}`` are expanded as in a recipe."""
        study, written = cls._read(path, os.environ), cls._read(path, _Names())
        study.digests.update({row: digest_of(written.recipe | written._own(row)) for row in written.rows})
        return study

    @classmethod
    def _read(cls, path: Path, environment: Mapping[str, str]) -> Study:
        document = read_yaml(path.read_text(encoding="utf-8"), str(path), environment)
        if document.problems:
            raise SystemExit("\n".join(document.problems))
        values = dict(document.data)
        if "like" in values and not {"rows", "rows_of"} & values.keys():
            values = _whole(path.parent / values["like"], environment) | values
            values["plots"] = {
                name.replace(Path(values["like"]).stem, path.stem): plot for name, plot in values["plots"].items()
            }
        rows: dict[str, dict[str, Any]] = {}
        for name, taken in values.get("rows_of", {}).items():
            known = cls._read(path.with_name(name), environment).rows
            rows |= {row: {key: known[row][key] for key in ("training", "steps") if key in known[row]} for row in taken}
        own = values.get("recipe", {})
        for name, given in values.get("rows", {}).items():
            blocks = _blocks(path.parent / given["like"], environment) | own if "like" in given else {}
            rows[name] = blocks | {key: value for key, value in given.items() if key != "like"}
        baselines = values.get("baselines", ["labels only"])
        recipe = (_blocks(path.parent / values["like"], environment) if "like" in values else {}) | own
        each = values.get("each", {})
        if each:
            rows = {
                f"{row}, {name}": _merged(recipe, blocks, more)
                for row, blocks in rows.items()
                for name, more in each.items()
            }
        return cls(
            path.stem, recipe, rows, tuple(values["seeds"]), tuple(baselines), values.get("plots", {}), tuple(each)
        )

    def recipe_of(self, row: str, seed: int) -> Recipe:
        """Return the recipe of one row with one seed."""
        values = self.recipe | self._own(row) | {"name": plain(f"{self.name} {row}"), "seed": seed}
        return recipe_from_plain(values, f"{self.name}, {row}")

    def seeds_of(self, row: str) -> tuple[int, ...]:
        """Return the seeds of one row."""
        return tuple(self.rows[row].get("seeds", self.seeds))

    def baseline_of(self, row: str, baseline: str) -> str:
        """Return the row that a baseline is for this one: of several made for ``each`` name, the one of the same."""
        return baseline + next((f", {name}" for name in self.each if row.endswith(f", {name}")), "")

    def _own(self, row: str) -> dict[str, Any]:
        return {key: value for key, value in self.rows[row].items() if key != "seeds"}


def _whole(path: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return all that another study says but for its recipe."""
    values = read_yaml(path.read_text(encoding="utf-8"), str(path), environment).data
    return {"plots": {}} | {key: values[key] for key in values.keys() - {"recipe", "like"}}


def _merged(recipe: Mapping[str, Any], row: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the blocks of a row with some fields changed; blocks that the row does not have are the study's."""
    known = {**recipe, **row}
    changed = {
        key: {**known[key], **value} if isinstance(known.get(key), dict) else value for key, value in more.items()
    }
    return {**row, **changed}


def _blocks(path: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the blocks that the rows of a study share, or those of a recipe."""
    values = read_yaml(path.read_text(encoding="utf-8"), str(path), environment).data
    if "seeds" in values:
        return Study._read(path, environment).recipe
    return {key: values[key] for key in values.keys() - {"name", "seed"}}


@dataclass(frozen=True)
class Outcome:
    """The records of one row.

    Attributes:
        runs: Seed -> run.
    """

    runs: Mapping[int, Run] = field(default_factory=dict)

    @property
    def students(self) -> list[Result]:
        """The student of each seed, in the order of seeds."""
        known = [(seed, run.student) for seed, run in self.runs.items() if run.student is not None]
        return [student.model_copy(update={"training_seed": seed}) for seed, student in known]

    @property
    def exports(self) -> list[Result]:
        """The export of each seed that has one."""
        return [run.export for run in self.runs.values() if run.export is not None]

    @property
    def teachers(self) -> list[Result]:
        """The reference of each seed that has one."""
        return [run.reference for run in self.runs.values() if run.reference is not None]

    @property
    def seconds(self) -> list[float]:
        """Seconds of the steps, of each seed."""
        return [run.seconds for run in self.runs.values() if run.student is not None]

    @property
    def failure(self) -> str:
        """Why a run failed, if one did."""
        return next((run.failure for run in self.runs.values() if run.failure), "")

    @property
    def missing(self) -> bool:
        """Whether there is neither a result nor a reason why not."""
        return not (self.students or self.failure)


def run_study(
    study: Study, out: Path, archive: Archive, only: str = "", seeds: int | None = None, again: bool = False
) -> dict[str, Outcome]:
    """Run every row with every seed unless there is a record of it; write the records, and return them.

    Args:
        study: The rows to compare.
        out: Folder of the runs; runs that exist there are not repeated.
        archive: Where the records are.
        only: Run the row of this name, or else the rows whose name contains it.
        seeds: Run this many of the first seeds.
        again: Run rows whose record is there and whose folder is not.
    """
    chosen, failed = rows_named(study, only), set()
    for seed in study.seeds[:seeds]:
        for row in chosen:
            folder = out / f"{plain(row)}-{seed}"
            known = archive.has(study.name, row, seed, study.digests[row]) and (folder.is_dir() or not again)
            if seed not in study.seeds_of(row) or row in failed or known:
                continue
            try:
                recipe = study.recipe_of(row, seed)
                if not (folder / LAST).is_file():
                    logger.info("%s, seed %d", row, seed)
                    run_recipe(recipe, folder, resume=True)
                run = _finished(study, row, recipe, folder)
            except CompressError as error:
                failed.add(row)
                logger.error("%s, seed %d: %s", row, seed, error)
                run = Run(study.digests[row], failure=" ".join(str(error).split())[:200], made=_made(study))
            if run.student is not None or run.failure:
                archive.save(study.name, row, seed, run)
    return outcomes(study, archive, only, seeds)


def rows_named(study: Study, only: str = "") -> list[str]:
    """Return the row of this name, or else the rows whose name contains it."""
    return [only] if only in study.rows else [row for row in study.rows if only in row]


def outcomes(study: Study, archive: Archive, only: str = "", seeds: int | None = None) -> dict[str, Outcome]:
    """Return the records of a study by row, without those of another recipe than the study has today."""
    known, allowed = archive.load(study.name), study.seeds[:seeds]
    found = {}
    for row in rows_named(study, only):
        runs = {seed: run for seed, run in known.get(row, {}).items() if seed in allowed}
        current = {seed: run for seed, run in runs.items() if run.recipe == study.digests[row]}
        if len(current) < len(runs):
            logger.warning("%s, %s: %d records of another recipe", study.name, row, len(runs) - len(current))
        found[row] = Outcome(current)
    return found


def _finished(study: Study, row: str, recipe: Recipe, folder: Path) -> Run:
    """Return the run of a finished folder; of a study that measures nothing, one without results."""
    lineage = load(folder / "model").lineage
    made = _made(study) | {"techniques": {record.technique: record.version for record in lineage}}
    seconds = sum(record.total_seconds for record in lineage)
    if not (folder / "results").is_dir():
        return Run(study.digests[row], seconds=seconds, made=made)
    named = {result.name: result for result in map(Result.load, sorted((folder / "results").iterdir()))}
    export = next((named[name] for name in EXPORTS if name in named), None)
    student = named.get(recipe.name, export)  # steps that change the export alone leave the network as the teacher's
    if student is None:
        raise CompressError(f"{folder}: holds no result of {recipe.name}")
    reference = named.get(student.comparison.reference) if student.comparison else None
    return Run(study.digests[row], student, export, reference, seconds, made=made)


def _made(study: Study) -> dict[str, Any]:
    command = f"python -m benchmarks.study benchmarks/studies/{study.name}.yaml --out runs/{study.name}"
    environment = {name: os.environ[name] for name in TOLD if name in os.environ}
    return {"command": command, "commit": commit(), "environment": environment}


def table(study: Study, found: Mapping[str, Outcome]) -> str:
    """Return the study as a Markdown table, and below it how many comparisons stand in it and which rows are missing.

    A difference is bold if it is significant at 5%, on either side, after Holm's correction for all of the table. A
    column that says nothing of any row is left out.
    """
    compared = _comparisons(study, found)
    corrected = holm([min(1.0, 2 * min(one.p_value, 1 - one.p_value)) for one in compared.values()])
    against = {
        place: _difference(one, p_value < 0.05)
        for (place, one), p_value in zip(compared.items(), corrected, strict=True)
    }
    heads = ["method", "score", "% of teacher score [95%]", *(f"against {name} [95%]" for name in study.baselines)]
    heads += ["parameters", "MACs at 128", "MB", "training s"]
    heads += ["export", "export score", "export, % of teacher score [95%]", "export MB", "speedup, batch 1"]
    heads += ["mean layers"]  # of models that leave early
    missing = [row for row, outcome in found.items() if outcome.missing]
    rows = [[row, *_cells(study, row, outcome, against)] for row, outcome in found.items() if not outcome.missing]
    told = [place for place in range(len(heads)) if place < 2 or any(row[place] not in NOTHING for row in rows)]
    lines = [f"| {' | '.join(cells[place] for place in told)} |" for cells in (heads, *rows)]
    lines.insert(1, "|" + "---|" * len(told))
    notes = []
    if len(compared) > 1:
        notes.append(
            f"{len(compared)} comparisons with a baseline; bold: p < 5% after Holm's correction for all of them."
        )
    if any(one.covers == "these models" for one in compared.values()):
        notes.append(
            "Where a row has one seed, the interval of its difference holds for these models, not for training anew."
        )
    if others := [row for row in found if any(_on_others(study, row, name, found) for name in study.baselines)]:
        notes.append(f"Not compared, for the files of its examples are others: {', '.join(map(repr, others))}.")
    if notes:
        lines += ["", " ".join(notes)]
    return "\n".join([*lines, *not_measured(missing)])


def not_measured(names: Iterable[str]) -> list[str]:
    """Return the lines that name rows without a record; none if there are no such rows."""
    missing = "; ".join(f"*{name}*" for name in names)
    return ["", f"{MISSING.capitalize()}: {missing}."] if missing else []


def block(study: Study, found: Mapping[str, Outcome]) -> str:
    """Return what a page says of a study: the table and what it was measured on, or that no row has a record."""
    runs = [run for outcome in found.values() for run in outcome.runs.values()]
    results = [run.student for run in runs if run.student is not None]
    if not runs:
        return f"*{len(found)} rows, {MISSING}: `benchmarks/studies/{study.name}.yaml`.*"
    told = [f"{result.examples:,} examples of {result.split}" for result in results]
    told += [in_one_line(result.machine) for result in results]
    commits = sorted({run.made.get("commit", "") for run in runs} - {""})
    told += [f"commit {', '.join(commits)}"] if commits else []
    lines = f"{'; '.join(dict.fromkeys(told))}. Data: `benchmarks/results/{study.name}`."
    return f"{table(study, found)}\n\n{lines}"


def _comparisons(study: Study, found: Mapping[str, Outcome]) -> dict[tuple[str, str], Comparison]:
    """Return each row against each baseline, over the seeds that both have.

    Those without an interval, and those on other examples, are left out.
    """
    known: dict[tuple[str, str], Comparison] = {}
    for row, outcome in found.items():
        for baseline in study.baselines:
            name = study.baseline_of(row, baseline)
            base = found.get(name)
            if row == name or base is None or _on_others(study, row, baseline, found):
                continue
            seeds = {result.training_seed for result in base.students}
            both = [result for result in outcome.students if result.training_seed in seeds]
            of_them = {result.training_seed for result in both}
            if both:
                one = pair(both, [result for result in base.students if result.training_seed in of_them])
                if isfinite(one.p_value):
                    known[row, baseline] = one
    return known


def _on_others(study: Study, row: str, baseline: str, found: Mapping[str, Outcome]) -> bool:
    """Whether a row was measured on other examples than a baseline."""
    both = [found.get(name) for name in (row, study.baseline_of(row, baseline))]
    return len({result.digest for outcome in both if outcome is not None for result in outcome.students}) > 1


def _cells(study: Study, row: str, outcome: Outcome, against: dict[tuple[str, str], str]) -> list[str]:
    if not outcome.students:
        return [f"not run: {outcome.failure}"] + [""] * (11 + len(study.baselines))
    scores = [result.score for result in outcome.students]
    spread = f" ± {stdev(scores):.4f}" if len(scores) > 1 else ""
    size = outcome.students[0].size
    cells = [f"{mean(scores):.4f}{spread} ({len(scores)})", shown(retained(outcome, "student"))]
    cells += [against.get((row, baseline), "") for baseline in study.baselines]
    cells.append(f"{size.parameters / 1e6:.1f} M" if size else "")
    cells.append(f"{size.macs / 1e6:.0f} M" if size and size.macs is not None else "")
    cells.append(f"{(outcome.students[0].bytes or 0) / 1e6:.1f}")
    cells.append(f"{mean(outcome.seconds):.0f}" if any(outcome.seconds) else "")  # empty if nothing is trained
    depths = [one.layers for one in outcome.students if one.layers is not None]
    depth = f"{mean(depths):.2f}" if depths else ""
    if not outcome.exports:
        return [*cells, "none", "", "", "", "", depth]
    speed = [ratio for result in outcome.exports if (ratio := result.speedup())]
    cells.append("int8" if outcome.exports[0].name == EXPORTS[0] else "float32")
    cells.append(f"{mean(result.score for result in outcome.exports):.4f}")
    cells.append(shown(retained(outcome, "export")))
    cells.append(f"{(outcome.exports[0].bytes or 0) / 1e6:.1f}")
    return [*cells, f"{mean(speed):.1f}" if speed else "", depth]


def retained(outcome: Outcome, name: Literal["student", "export"]) -> Interval | None:
    """Return the share of the reference's score that student or export has, over all seeds that have both."""
    runs = [run for run in outcome.runs.values() if getattr(run, name) is not None and run.reference is not None]
    if not runs:
        return None
    return pair([getattr(run, name) for run in runs], [run.reference for run in runs if run.reference]).retention


def shown(value: Interval | None) -> str:
    """Return a share with its interval; empty where there is none."""
    return "" if value is None else f"{value.value:.1%} [{value.low:.1%}, {value.high:.1%}]"


def _difference(compared: Comparison, significant: bool) -> str:
    difference, mark = compared.difference, "**" if significant else ""
    return f"{mark}{difference.value:+.4f}{mark} [{difference.low:+.4f}, {difference.high:+.4f}]"


def draw_plots(study: Study, found: dict[str, Outcome], folder: Path) -> None:
    """Write each plot of the study whose rows all ran or failed, for light and for dark pages.

    Where all of its rows have the same teacher, its score stands across.
    """
    from eval.report.plots import lines, render, write_themes

    folder.mkdir(parents=True, exist_ok=True)
    run = {row: outcome.students for row, outcome in found.items() if outcome.students}
    scores = {row: score(students) for row, students in run.items()}
    for name, plot in study.plots.items():
        known = {
            line: [(float(x), scores[row]) for x, row in rows.items() if row in run]
            for line, rows in plot["lines"].items()
        }
        drawn = {line: points for line, points in known.items() if points}
        rows = [row for points in plot["lines"].values() for row in points.values()]
        if not drawn or any(row not in found or found[row].missing for row in rows):
            continue
        teachers = {one.score: one for row in rows for one in found[row].teachers}
        level = [("teacher", only) for only in teachers] if len(teachers) == 1 else [None]
        metric = next(iter(run.values()))[0].metric
        whole = all(x == int(x) for points in drawn.values() for x, _ in points)
        series = {line: [(x, one.value) for x, one in points] for line, points in drawn.items()}
        bars = {line: [(one.low, one.high) for _, one in points] for line, points in drawn.items()}
        picture = render(lines(series, plot["x"], metric, level[0], whole, bars, bool(plot.get("log"))))
        write_themes(folder, name, picture)


def score(students: Sequence[Result]) -> Interval:
    """Return the mean score of one row's seeds, with its interval."""
    kept = [one.kept for one in students if one.kept is not None]
    if len(kept) < len(students):
        value = mean(one.score for one in students)
        return Interval(value, value, value)
    both = [(one.answers, one.answers) for one in kept]
    found = paired_scores(students[0].task, both, kept[0].gold, kept[0].groups)
    interval, value = score_interval(found.parts[0]), float(found.scores[:, 0].mean())
    return Interval(value, value + interval.low - interval.value, value + interval.high - interval.value)


def main() -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("study", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="the row of this name, or else rows whose name contains it")
    parser.add_argument("--seeds", type=int, help="run only this many of the first seeds")
    parser.add_argument("--again", action="store_true", help="run rows whose record is there and whose folder is not")
    parser.add_argument("--table", action="store_true", help="run nothing; print the records")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw the study's plots there")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    study, archive, only, seeds = Study.read(arguments.study), Archive(), arguments.only, arguments.seeds
    if not arguments.table:
        run_study(study, arguments.out, archive, only, seeds, arguments.again)
    found = outcomes(study, archive, only, seeds)
    print(block(study, found) or f"{study.name}: no records")
    if arguments.plots is not None:
        draw_plots(study, found, arguments.plots)


if __name__ == "__main__":
    main()
