"""What candidates share is trained once: every step is kept under the content of all that decides its outcome."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from compress.artifact.artifact import Artifact
from compress.engine.steps import copy_step, identity, run_step, step_folders
from eval.files.typed_json import json_digest
from eval.files.writing import exclusive

if TYPE_CHECKING:
    from compress.recipe import Recipe
    from compress.technique import Inputs, Technique


def run_shared(recipe: Recipe, student: Artifact, inputs: Inputs, store: Path) -> tuple[Artifact, list[Path]]:
    """Do what ``compress.engine.steps.run`` does, and find again what another candidate or process trained.

    A process that comes to a step that another one is training waits for it; one that was killed left its checkpoint,
    from which the next goes on.

    Args:
        recipe: Its ``steps`` and ``seed`` are used.
        student: The model to start from.
        inputs: Data and teacher for the steps.
        store: Holds a folder for each step that was run.

    Returns:
        The result, and where each step is kept.
    """
    artifact, places = Artifact.from_model(student), []
    for index, step in enumerate(recipe.steps):
        place = _place(store, step, artifact, inputs, recipe.seed + index)
        with exclusive(place):
            artifact = run_step(step, artifact, inputs, recipe.seed + index, place)
        places.append(place)
    return artifact, places


def _place(store: Path, step: Technique, artifact: Artifact, inputs: Inputs, seed: int) -> Path:
    decides = {**identity(step, artifact, inputs, seed), "files_before": artifact.lineage[-1].files}
    return store / f"{step.name}-{json_digest(decides)[:20]}"


def take_over(recipe: Recipe, places: list[Path], folder: Path) -> None:
    """Put the kept steps of a recipe where a run of it looks for them."""
    for place, wanted in zip(places, step_folders(recipe, folder), strict=True):
        if not wanted.exists():
            copy_step(place, wanted)
