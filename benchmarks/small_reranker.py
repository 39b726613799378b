"""Make the reranker of three layers from which students of benchmarks/studies/reranking-squad.yaml start.

    COMPRESS_DATA=… COMPRESS_BASE=… python -m benchmarks.small_reranker --out runs

It runs the recipes qnli-three-layers and squad-three-layers one after the other, 7 and 22 minutes on one core, on the
questions of ``squad1`` that benchmarks.data.squad_documents makes a search of. What is there is not made again, and an
interrupted training goes on.
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


def made(out: Path) -> Path:
    """Train it below ``out``, or find it there; return its folder.

    Raises:
        SystemExit: If a training ended in an error, which it has said.
    """
    documents = squad_documents.written(
        Path(os.environ["COMPRESS_DATA"]) / "squad1", out / "squad_search_all", QUESTIONS
    )
    pairs, reranker = out / "qnli-three-layers", out / "squad-three-layers"
    for folder, values in ((pairs, ()), (reranker, (f"task.data={documents}", f"teacher.model={pairs}"))):
        sets = [word for value in values for word in ("--set", value)]
        recipe = RECIPES / f"{folder.name}.yaml"
        if not (folder / "config.json").is_file() and compress(
            ["teach", "--recipe", str(recipe), "--out", str(folder), *sets]
        ):
            raise SystemExit(f"{recipe.name}: could not be trained")
    return reranker


def main() -> None:
    """Make it and say where it is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs"))
    print(made(parser.parse_args().out))


if __name__ == "__main__":
    main()
