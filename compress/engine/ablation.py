"""What each step contributed: the recipe again with that step left out, everything else alike."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from compress.artifact.artifact import Artifact, load
from compress.engine.run_folder import STEPS
from compress.engine.steps import run
from eval.errors import UserError
from eval.progress.stages import stage
from teachers.training.tracking import tracked_as

if TYPE_CHECKING:
    from compress.recipe import Recipe
    from compress.technique import Inputs

logger = logging.getLogger("compress.engine.ablation")


@dataclass(frozen=True)
class Ablation:
    """A recipe without one of its steps.

    Attributes:
        name: ``without`` and the step's name, with its number if another step has the same.
        folder: Where the result lies.
        artifact: The result; None if the other steps cannot run without this one.
        reason: Why they cannot.
    """

    name: str
    folder: Path
    artifact: Artifact | None = None
    reason: str = ""


def ablations(recipe: Recipe, student: Artifact, inputs: Inputs, out: Path) -> Iterator[Ablation]:
    """Run ``recipe`` once without each of its steps, or find what was run before.

    The steps before the one that is left out are those of the whole run, and the steps after it keep their seeds, so
    the difference to the whole is that step alone.

    Args:
        recipe: What was run.
        student: What its first step got.
        inputs: Data and teacher.
        out: The folder of the run, with ``steps``.
    """
    names = [step.name for step in recipe.steps]
    for number, step in enumerate(recipe.steps):
        name = f"without {step.name}" + (f" {number + 1}" if names.count(step.name) > 1 else "")
        folder = out / "without" / f"{number + 1}-{step.name}"
        before = load(out / STEPS / f"{number}-{names[number - 1]}") if number else student
        rest = recipe.model_copy(update={"steps": recipe.steps[number + 1 :], "seed": recipe.seed + number + 1})
        try:
            with tracked_as(name), stage(name):
                made = run(rest, before, inputs, folder=folder / STEPS, anew=True)
        except UserError as error:
            logger.warning("%s: cannot run (%s)", name, "; ".join(error.problems))
            yield Ablation(name, folder, reason="; ".join(error.problems))
            continue
        artifact = replace(made, name=name, folder=folder / "model")
        artifact.save(folder / "model")
        yield Ablation(name, folder, artifact)
