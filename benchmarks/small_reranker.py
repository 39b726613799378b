"""Make the rerankers of three or six layers from which students of benchmarks/studies/reranking-squad.yaml start.

    COMPRESS_DATA=… COMPRESS_BASE=… python -m benchmarks.small_reranker --out runs [--start three-layers-low-rate]

It runs the recipes qnli-three-layers and squad-three-layers one after the other, on the questions of ``squad1`` that
benchmarks.data.squad_documents makes a search of: half an hour on one core, an hour where all questions are read twice.
Six layers are work for a GPU. What is there is not made again, and an interrupted training
goes on.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from benchmarks.data import squad_documents
from compress.cli import main as compress

RECIPES = Path(__file__).parents[1] / "compress" / "recipes"
QUESTIONS = 12_000
"""More than the split has that is learned from."""
FAST = "teacher.finetune.learning_rate=3.0e-4"
PAIRS_TWICE = (FAST, "teacher.finetune.batch_size=64", "teacher.finetune.epochs=2")
ALL = f"task.limit.train={QUESTIONS}"
ALL_TWICE = (ALL, "teacher.finetune.epochs=2")
STARTS: dict[str, dict[str, tuple[str, ...]]] = {
    "three-layers": {"qnli": PAIRS_TWICE, "squad": (FAST,)},
    "three-layers-longer": {"qnli": PAIRS_TWICE, "squad": (FAST, *ALL_TWICE)},
    "three-layers-low-rate": {"squad": (ALL,)},
    "six-layers": {
        "qnli": (*PAIRS_TWICE, "teacher.shape.layers=[0, 1, 2, 3, 4, 5]"),
        "squad": (*ALL_TWICE, "teacher.finetune.learning_rate=2.0e-4", "teacher.finetune.batch_size=120"),
    },
}
"""What the recipes of each have otherwise; the folder of each is ``squad-`` and its name. At a rate of 3e-4 the first
stage of the first two hardly left a constant answer."""


def made(out: Path, start: str = "three-layers") -> Path:
    """Train one below ``out``, or find it there; return its folder.

    Args:
        out: Folder of the runs.
        start: One of ``STARTS``.

    Raises:
        SystemExit: If a training ended in an error, which it has said.
    """
    documents = squad_documents.written(
        Path(os.environ["COMPRESS_DATA"]) / "squad1", out / "squad_search_all", QUESTIONS
    )
    own = STARTS[start]
    pairs, reranker = out / f"qnli-{start.removesuffix('-longer')}", out / f"squad-{start}"
    for folder, name, values in (
        (pairs, "qnli", ()),
        (reranker, "squad", (f"task.data={documents}", f"teacher.model={pairs}")),
    ):
        sets = [word for value in (*own.get(name, ()), *values) for word in ("--set", value)]
        recipe = RECIPES / f"{name}-three-layers.yaml"
        if not (folder / "config.json").is_file() and compress(
            ["teach", "--recipe", str(recipe), "--out", str(folder), *sets]
        ):
            raise SystemExit(f"{recipe.name}: could not be trained")
    return reranker


def main() -> None:
    """Make it and say where it is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--start", choices=STARTS, default="three-layers")
    given = parser.parse_args()
    print(made(given.out, given.start))


if __name__ == "__main__":
    main()
