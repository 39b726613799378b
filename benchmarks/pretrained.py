"""Pretrain the model of every compress/recipes/pretrain-*.yaml, or find it, and print losses and validation scores.

    COMPRESS_DATA=… python -m benchmarks.pretrained --out runs/pretrained [--only bert] [--table]

Each is in its own folder below ``--out``, named by what follows "pretrain-". The lists that ERNIE needs are
made first, by benchmarks/data/chinese_lists.py.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.archive import RESULTS, keep
from benchmarks.data import chinese_lists
from benchmarks.markdown_table import markdown_table
from benchmarks.study import not_measured
from compress.recipe import read_recipe
from eval.files.writing import atomic_folder
from teachers.pretraining.pretrain import RECORD, pretrain

RECIPES = Path(__file__).parents[1] / "compress" / "recipes"
HEADINGS = ("objective", "tokens seen", "loss", "on validation text", "tokens/s", "of the matrix rate")


def names() -> list[str]:
    """Return what follows "pretrain-" in the recipes' names."""
    return sorted(path.stem.removeprefix("pretrain-") for path in RECIPES.glob("pretrain-*.yaml"))


def lists(out: Path) -> None:
    """Make ERNIE's lists of words and entities, if they do not exist, and set their paths in the environment."""
    data = Path(os.environ["COMPRESS_DATA"])
    out.mkdir(parents=True, exist_ok=True)
    for name, make in (("words", chinese_lists.words), ("entities", chinese_lists.entities)):
        file = out / f"{name}.txt"
        if not file.is_file():
            file.write_text("".join(f"{one}\n" for one in make(data)), encoding="utf-8")
        os.environ[f"ERNIE_{name.upper()}"] = str(file.resolve())


def network(name: str, out: Path) -> Path:
    """Pretrain the model of a recipe into ``out / name``, or find it there; return its folder."""
    place = out / name
    if not (place / RECORD).is_file():
        file = RECIPES / f"pretrain-{name}.yaml"
        if "ERNIE_WORDS" in file.read_text(encoding="utf-8"):
            lists(out / "lists")
        recipe = read_recipe(file)
        if recipe.teacher is None or recipe.teacher.pretrain is None:
            raise SystemExit(f"recipes/pretrain-{name}.yaml: has no pretrain block")
        made = pretrain(recipe.teacher.pretrain, seed=recipe.seed, name=recipe.name)
        with atomic_folder(place, "the network") as beside:
            shutil.copytree(made, beside, dirs_exist_ok=True)
    return place


def networks(out: Path, text: str) -> Path:
    """Pretrain those that a text names, as in ``${PRETRAINED}/bert``; return ``out``."""
    for name in sorted(set(re.findall(r"\$\{PRETRAINED[^}]*\}/([\w-]+)", text))):
        network(name, out)
    return out


def report(found: Mapping[str, Any]) -> str:
    """Return a Markdown table, from what this program keeps in benchmarks/results."""
    known = [name for name in names() if name in found["models"]]
    table = markdown_table([HEADINGS, *([name, *_cells(found["models"][name])] for name in known)])
    return "\n".join([table, *not_measured(name for name in names() if name not in known)])


def kept(out: Path) -> dict[str, Any]:
    """Keep the facts of the models that exist, beside those of models that were trained elsewhere."""
    file = RESULTS / "pretrained.json"
    models = json.loads(file.read_text(encoding="utf-8"))["models"] if file.is_file() else {}
    here = {name: out / name / RECORD for name in names() if (out / name / RECORD).is_file()}
    models |= {name: json.loads(record.read_text(encoding="utf-8")) for name, record in here.items()}
    return keep("pretrained", {"models": dict(sorted(models.items()))})


def _cells(facts: dict[str, Any]) -> list[str]:
    stages = facts["stages"]
    seen = sum(entry["seconds"] * entry["tokens_per_second"] for stage in stages for entry in stage["history"])
    last, speed = stages[-1]["history"][-1], stages[-1]["speed"]
    terms, scores = (
        ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in figures.items())
        for figures in (last["terms"], last.get("scores") or {})
    )
    rate = f"{speed['utilisation']:.0%}"
    return [f"{seen / 1e6:.2f} M", terms, scores, f"{speed['tokens_per_second']:,.0f}", rate]


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/pretrained"))
    parser.add_argument("--only", nargs="+", choices=names(), default=names(), help="models to train")
    parser.add_argument("--table", action="store_true", help="train nothing")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    for name in () if given.table else given.only:
        network(name, given.out)
    print(report(kept(given.out)))


if __name__ == "__main__":
    main()
