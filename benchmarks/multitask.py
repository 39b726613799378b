"""Multi-task against single-task fine-tuning on small tasks: the recipe glue-mtdnn.yaml with one task and with all.

    COMPRESS_DATA=… COMPRESS_BASE=… python -m benchmarks.multitask [--seeds 13 14 15] [--limit 1000] [--fill]

Each task is trained alone, jointly with the others for as many epochs, and jointly and then alone for more epochs
(MT-DNN's second stage). --limit takes that many training examples of each task, the same for every seed. Models that
were trained before are found under COMPRESS_HOME. --fill writes the table into docs/results/teachers.md.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks.archive import keep
from benchmarks.markdown_table import markdown_table
from benchmarks.results import DOCS, fill
from compress.engine.several_tasks import load_tasks, losses_of, starts
from compress.recipe import Recipe, read_recipe
from eval.data.loading import Task
from teachers.finetuning.finetune import finetune
from teachers.finetuning.multitask import finetune_together
from teachers.taskmodel import TaskModel
from teachers.training.config import Training
from teachers.training.scoring import scores

RECIPE = Path(__file__).parents[1] / "compress" / "recipes" / "glue-mtdnn.yaml"
WAYS = ("single task", "joint", "joint, then single task")


def limited(recipe: Recipe, count: int | None) -> Recipe:
    """Return the recipe with this many training examples of each task, or with all of them."""
    if count is None:
        return recipe
    return read_recipe(RECIPE, [f"tasks.{name}.limit.train={count}" for name in recipe.tasks or {}])


def trained(recipe: Recipe, tasks: Mapping[str, Task], way: str, seed: int) -> dict[str, TaskModel]:
    """Return one model per task, trained in one of ``WAYS``."""
    block = recipe.teacher.finetune if recipe.teacher is not None else None
    if recipe.teacher is None or block is None:
        raise SystemExit(f"{RECIPE}: has no teacher with a finetune block")
    models = starts(recipe, tasks, recipe.teacher.models[0], seed)
    losses = losses_of(recipe)
    if way == WAYS[0]:
        return {
            name: finetune(model, tasks[name], block.training, seed=seed, name=name, loss=losses.get(name))[0]
            for name, model in models.items()
        }
    second: Training | None = block.per_task if way != WAYS[1] else None
    found = finetune_together(models, tasks, block.training, losses=losses, per_task=second, seed=seed)
    return {name: model for name, (model, _) in found.items()}


def table(found: Mapping[str, Mapping[str, list[float]]]) -> str:
    """Return a Markdown table: a row per way of training, a column per task, mean and spread over the seeds.

    Args:
        found: Way -> task -> the score of each seed.
    """
    tasks = list(next(iter(found.values())))
    rows = ([way, *(_shown(own[name]) for name in tasks)] for way, own in found.items())
    return markdown_table([["training", *tasks], *rows])


def report(found: Mapping[str, Any]) -> str:
    """Return the table, from what this program keeps in benchmarks/results."""
    return table(found["scores"])


def _shown(values: list[float]) -> str:
    spread = f" ± {stdev(values):.4f}" if len(values) > 1 else ""
    return f"{mean(values):.4f}{spread} ({len(values)})"


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[13, 14, 15])
    parser.add_argument("--limit", type=int, help="training examples of each task (default: all)")
    parser.add_argument("--fill", action="store_true")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    recipe = limited(read_recipe(RECIPE), given.limit)
    tasks = load_tasks(recipe)
    found: dict[str, dict[str, list[float]]] = {way: {name: [] for name in tasks} for way in WAYS}
    for seed in given.seeds:
        for way in WAYS:
            for name, model in trained(recipe, tasks, way, seed).items():
                found[way][name].append(next(iter(scores(model, tasks[name].validation).values())))
    print(table(found))
    if given.fill:
        facts = keep("multitask", {"seeds": given.seeds, "limit": given.limit, "scores": found})
        fill(DOCS / "teachers.md", "multitask", report(facts))


if __name__ == "__main__":
    main()
