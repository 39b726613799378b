"""Folders of finished runs, read again: what each shipped, against what, and by which recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from compress.engine.preparation import read_roles
from compress.engine.run_folder import RECIPE_FILE, RESULTS, place_of_run, unmeasured
from compress.export.runtime.manifest import MANIFEST
from compress.recipe import Recipe, read_recipe
from eval.errors import CompressError, UserError
from eval.naming import distinct_names
from eval.report.runs import RunFigures
from eval.report.summary import shipped
from eval.result import RESULT_FILE, Result
from eval.task import Examples


@dataclass(frozen=True)
class FinishedRun:
    """A run that was measured.

    Attributes:
        recipe: What was run.
        figures: What came of it.
    """

    recipe: Recipe
    figures: RunFigures


def read_runs(folders: Sequence[Path]) -> tuple[list[FinishedRun], list[str]]:
    """Read the folders of runs; return them, and why each of the others is left out: it holds no finished run.

    Raises:
        UserError: With every folder that does not exist, is damaged, or was named twice, or if fewer than two are left.
    """
    found: list[FinishedRun] = []
    problems = [f"{folder}: was given twice" for folder in _twice(folders)]
    left_out = {folder: why for folder in folders if (why := unmeasured(folder))}
    kept = [folder for folder in folders if folder not in left_out]
    problems += [why for folder, why in left_out.items() if not folder.exists()]
    for folder, name in zip(kept, distinct_names([str(folder) for folder in kept]), strict=True):
        try:
            found.append(_read(place_of_run(folder), name))
        except UserError as error:
            problems += error.problems
    if not problems and len(found) < 2:
        problems.append("compare: needs the folders of two runs or more")
    if problems:
        raise UserError(*problems, *left_out.values())
    return found, [f"Left out: {why}" for why in left_out.values()]


def examples_of(run: FinishedRun) -> Examples | None:
    """Return the examples that a run was measured on; None where they are gone or were changed."""
    try:
        roles = read_roles(run.recipe)
    except (CompressError, OSError):
        return None
    examples = None if roles is None else roles.task.splits.get(roles.report)
    return examples if examples is not None and examples.digest == run.figures.result.digest else None


def _twice(folders: Sequence[Path]) -> list[Path]:
    places = [folder.resolve() for folder in folders]
    return [folder for number, folder in enumerate(folders) if places[number] in places[:number]]


def _read(home: Path, name: str) -> FinishedRun:
    results = [Result.load(file.parent) for file in sorted((home / RESULTS).glob(f"*/{RESULT_FILE}"))]
    exports = [path.parent.name for path in home.glob(f"*/{MANIFEST}")]
    result = shipped(results, exports) or results[0]
    reference = result.comparison.reference if result.comparison else None
    against = sorted((one for one in results if one.name.split(", ")[0] == reference), key=lambda one: len(one.name))
    return FinishedRun(read_recipe(home / RECIPE_FILE), RunFigures(name, result, tuple(against)))
