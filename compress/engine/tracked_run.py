"""A recipe as one run of the trackers that it names: its values, the curves of its trainings, the final figures."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from compress.recipe import recipe_to_plain
from eval.naming import without_paths
from teachers.training.tracking import track, track_with, tracked_as

if TYPE_CHECKING:
    from compress.recipe import Recipe
    from eval.result import Result


def tracked(recipe: Recipe, folder: Path) -> AbstractContextManager[None]:
    """Send whatever is trained meanwhile to the trackers of a recipe; see ``track_with``.

    Args:
        recipe: Its name is that of the project, its values are the configuration.
        folder: Trackers that write files write them in ``tracking`` in it.
    """
    return track_with(recipe.trackers, recipe.name, folder / "tracking", without_paths(recipe_to_plain(recipe)))


def track_results(results: Sequence[Result]) -> None:
    """Send what was measured at the end: scores, size and latency of each model."""
    for result in results:
        timing = result.row(1)
        figures = {
            **result.scores,
            "bytes": result.bytes,
            "parameters": result.size.parameters if result.size else None,
            "p50_ms": timing.p50_ms if timing else None,
        }
        with tracked_as("results"), tracked_as(result.name):
            track({name: value for name, value in figures.items() if value is not None})
