"""The folder of a run: whose it is, what stands where in it, and that nothing in it is of another model."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from compress.engine.provenance import is_of
from compress.export.folder import occupied
from compress.export.runtime.manifest import MANIFEST
from compress.export.targets.target_registry import target_names
from compress.reading.block_reader import BlockReader
from compress.reading.yaml_places import Document, read_yaml
from compress.recipe import Recipe, recipe_to_plain, recipe_to_yaml
from eval.errors import CompressError, UserError
from eval.files.full_disk import full_disk
from eval.files.paths import no_folder, refuse_file
from eval.files.writing import atomic_write, clear_leftovers, is_unfinished
from eval.result import RESULT_FILE

if TYPE_CHECKING:
    from compress.artifact.artifact import Artifact

logger = logging.getLogger("compress.engine.run_folder")

RECIPE_FILE, STEPS, MODEL = "recipe.yaml", "steps", "model"
RESULTS, RESULTS_FILE, PAGE = "results", "results.json", "report.html"
"""What stands in the folder of a run."""
INSIDE = "run"
"""Where ``compress optimize`` and ``compress distill`` keep their run in the folder that they write."""
FREE = ("export", "evaluate", "ablate", "track")
"""Parts of a recipe that may change from one run to the next in the same folder: they train no model of it anew."""


def place_of_run(folder: Path) -> Path:
    """Return where the run of a folder lies: in ``run`` of what ``optimize`` and ``distill`` wrote, else there."""
    inside = folder / INSIDE
    return inside if (inside / RECIPE_FILE).is_file() and not (folder / RESULTS_FILE).is_file() else folder


def no_run(folder: Path) -> str:
    """Return why a folder, or its ``run``, holds no run; nothing if it holds one."""
    if not folder.exists():
        return no_folder(folder)
    if (place_of_run(folder) / RECIPE_FILE).is_file():
        return ""
    return f"{folder}: holds no run (no {RECIPE_FILE} here); give the folder that 'compress run' wrote"


def unmeasured(folder: Path) -> str:
    """Return why a folder holds no run whose models were measured; nothing if it holds one."""
    if why := no_run(folder):
        return why
    if any((place_of_run(folder) / RESULTS).glob(f"*/{RESULT_FILE}")):
        return ""
    return f"{folder}: its models were not measured; go on with it by 'compress run … --resume'"


def run_in(folder: Path, measured: bool = False) -> Path:
    """Return where the run of a folder lies; see ``place_of_run``.

    Args:
        folder: What the user named.
        measured: Whether its models must have been measured.

    Raises:
        UserError: There is no such folder, or it holds no such run.
    """
    if problem := unmeasured(folder) if measured else no_run(folder):
        raise UserError(problem)
    return place_of_run(folder)


def refuse_other_run(recipe: Recipe, out: Path, resume: bool) -> None:
    """Refuse a folder that holds something else than a run that trains the same.

    Args:
        recipe: What is to be done.
        out: The folder.
        resume: Whether the run that it holds may go on.

    Raises:
        UserError: If it is no folder, not empty, or of another run.
    """
    refuse_file(out)
    if not out.is_dir() or not any(not is_unfinished(path) for path in out.iterdir()):
        return
    mark = out / RECIPE_FILE
    if not resume and not mark.is_file():
        raise UserError(f"{out}: is not empty, and holds no run to go on with; choose another --out")
    if not resume:
        raise UserError(f"{out}: is not empty; add --resume to go on with the run it holds, or choose another --out")
    try:
        earlier = mark.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UserError(
            f"{mark}: cannot be read ({error}), so this is no run to go on with; choose another --out"
        ) from error
    # A run of an earlier version that was killed while it wrote this left it empty; the steps know what they are of.
    if earlier.strip() and _trained_part(earlier, mark) != _trained_part(recipe_to_yaml(recipe), mark):
        raise UserError(
            f"{out}: holds a run of another recipe (see {RECIPE_FILE} there); choose another --out; "
            f"`compress run … --reuse {quote(str(out))}` takes over the steps that are the same; "
            f"only {', '.join(FREE)} may change here"
        )
    names = [f"{block.target}{kind}" for block in recipe.export for kind in ("", "-int8")]
    if taken := [problem for name in names for problem in occupied(out / name)]:
        raise UserError(*taken)


def steps_to_reuse(run: Path, out: Path) -> Path:
    """Return where another run keeps its steps.

    Args:
        run: Its folder.
        out: The folder of the run that takes them over.

    Raises:
        UserError: If it is no folder of a run, or the same.
    """
    if not (run / STEPS).exists():
        raise UserError(f"{run}: holds no {STEPS}, so there are no steps of a run to --reuse")
    if run.resolve() == out.resolve():
        raise UserError(f"{run}: is --out as well as --reuse; to go on with the run it holds take --resume")
    return run / STEPS


def take(out: Path, recipe: Recipe | None = None) -> None:
    """Make the folder of a run, and keep the recipe in it if one is given.

    Raises:
        CompressError: If the folder cannot be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        for folder in (out, *(out / RESULTS).glob("*/")):
            clear_leftovers(folder)
        if recipe is not None:
            atomic_write(out / RECIPE_FILE, recipe_to_yaml(recipe).encode())
    except OSError as error:
        raise CompressError(full_disk(error, out) or f"{out}: cannot be written ({error})") from error


@contextmanager
def provisional(out: Path) -> Iterator[None]:
    """Make the folder of a run before anything is known of the run, and take it away if that ends in an error.

    Raises:
        CompressError: If the folder cannot be written.
    """
    new = not out.exists()
    take(out)
    try:
        yield
    except BaseException:
        with suppress(OSError):  # something is in it
            if new:
                out.rmdir()
        raise


def _trained_part(text: str, source: Path) -> Any:
    """Return what of a recipe decides what is trained, under the names that fields have now."""
    found = read_yaml(text, str(source), {}).data
    recipe, _ = BlockReader(Document(str(source), found)).attempt(Recipe, found)
    found = found if recipe is None else recipe_to_plain(recipe)
    return {key: value for key, value in found.items() if key not in FREE} if isinstance(found, dict) else found


def save_result(artifact: Artifact, out: Path) -> None:
    """Save the model that a run made; what was measured or exported of another goes first: they never stand together.

    Args:
        artifact: The model.
        out: The folder of the run.
    """
    if (out / MODEL).is_dir() and not is_of(out / MODEL, artifact):
        exports = [out / f"{target}{kind}" for target in target_names() for kind in ("", "-int8")]
        for path in (out / RESULTS, *(folder for folder in exports if (folder / MANIFEST).is_file())):
            if path.is_dir():
                logger.info("%s: is of an earlier model, so it is removed", path)
                shutil.rmtree(path)
        for path in (out / RESULTS_FILE, out / PAGE):
            path.unlink(missing_ok=True)
    artifact.save(out / MODEL)
