"""The SST-2 result of docs/results/sst2.md: one teacher, 3-layer students with and without it, paired statistics.

    COMPRESS_DATA=… COMPRESS_BASE=… python -m benchmarks.sst2 [--out runs/sst2] [--only full|part] [--prepare]

Resumable: runs that exist in the output folder are not repeated. The full training set with one seed, and a fixed
part of 20,000 sentences with three seeds, all with the teacher that was fine-tuned on the full set.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path

from compress.engine.pipeline import Run, run_recipe
from compress.engine.preparation import read_roles
from compress.recipe import read_recipe
from eval.measurement import pair
from eval.report.console import to_text
from eval.result import Result
from eval.task import Task
from teachers.finetuning.finetune import finetune

RECIPE = Path(__file__).parent.parent / "recipes" / "sst2-distilbert.yaml"
SEEDS = (13, 14, 15)
PART = 20_000


def full(out: Path) -> Run:
    """Run the recipe unchanged: all sentences, one seed."""
    return run_recipe(read_recipe(RECIPE), out / "full-13", resume=True)


def part(out: Path, teacher: Path, seed: int) -> Run:
    """Run it on the fixed part, with the teacher of the full set.

    The part is drawn by the recipe's seed, so it is written once and read by every seed.
    """
    data = part_folder(out)
    overrides = [f"task.data={data}", "teacher.finetune=null", f"teacher.model={teacher}", f"seed={seed}"]
    overrides.append(f"name=sst2-part-{seed}")
    return run_recipe(read_recipe(RECIPE, overrides), out / f"part-{seed}", resume=True)


def part_folder(out: Path) -> Path:
    """Return the folder of the fixed part, which is written if it does not exist."""
    folder = out / "part"
    if not (folder / "train.jsonl").is_file():
        _write_part(folder)
    return folder


def teacher_folder() -> Path:
    """Return the folder of the fine-tuned teacher, which is trained if it does not exist."""
    recipe = read_recipe(RECIPE)
    if recipe.task is None or recipe.teacher is None or recipe.teacher.finetune is None:
        raise SystemExit(f"{RECIPE} no longer fine-tunes a teacher")
    task, training = recipe.task.load(recipe.seed), recipe.teacher.finetune.training
    base, seed = recipe.teacher.members(recipe.seed)[0]
    return finetune(base, task, training, seed=seed)[1]


def rest_file(out: Path) -> Path:
    """Return the file of the sentences that are not in the part, without their labels; written if it does not exist."""
    file = out / "rest.txt"
    if not file.is_file():
        folder = part_folder(out)
        taken = {json.loads(line)["text"] for line in (folder / "train.jsonl").read_text(encoding="utf-8").splitlines()}
        texts = [str(example["text"]) for example in _task().train if example["text"] not in taken]
        file.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return file


def _task() -> Task:
    """Return the data as the recipe sees it: what it carves from train to choose on is not in ``train``."""
    recipe = read_recipe(RECIPE)
    roles = read_roles(recipe)
    if roles is None:
        raise SystemExit(f"{RECIPE} has no task")
    return roles.task


def _write_part(folder: Path) -> None:
    task = _task()
    folder.mkdir(parents=True, exist_ok=True)
    for name, examples in (("validation", task.validation), ("train", task.train.sample(PART, seed=13))):
        lines = [json.dumps(dict(example), ensure_ascii=False) for example in examples]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _named(run: Run, name: str) -> Result:
    return next(result for result in run.results if result.name == name)


def main() -> None:
    """Run what is missing and print every figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/sst2"))
    parser.add_argument("--only", choices=("full", "part"))
    parser.add_argument("--prepare", action="store_true", help="only make teacher and part, and print their paths")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    if arguments.prepare:
        print(f"export SST2_TEACHER={teacher_folder().resolve()}")
        print(f"export SST2_PART={part_folder(arguments.out).resolve()}")
        print(f"export SST2_REST={rest_file(arguments.out).resolve()}")
        return
    if arguments.only != "part":
        print("Full training set, seed 13\n")
        print(to_text(full(arguments.out).results))
    if arguments.only == "full":
        return
    folder = teacher_folder()
    runs = [part(arguments.out, folder, seed) for seed in SEEDS]
    for seed, run in zip(SEEDS, runs, strict=True):
        print(f"\n{PART} sentences, seed {seed}\n")
        print(to_text(run.results))
    students = [_named(run, run.artifact.name) for run in runs]
    for other in ("no teacher", "teacher"):
        found = pair(students, [_named(run, other) for run in runs], margin=0.018)
        print(f"\nDistilled against {other!r}, seeds and sentences pooled")
        print(json.dumps(found.model_dump(mode="json"), indent=1))


if __name__ == "__main__":
    main()
