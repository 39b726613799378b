"""``make demo``: generated reviews, a teacher trained on the spot, a smaller student, its export, and a certificate."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from demo.grammar import write

VOCABULARY = 400
SHAPE = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512}


def make_base(data: Path, folder: Path) -> None:
    """Write a small BERT with random weights, and a WordPiece tokenizer trained on the data."""
    import torch
    import transformers

    from eval.data.loading import load_task
    from teachers.pretraining.text.wordpiece_trainer import bert_word_pieces
    from teachers.taskmodel import quiet

    texts = [example["text"] for example in load_task("classification", data=str(data)).train]
    fast = bert_word_pieces(texts, VOCABULARY, max_length=128)
    config = transformers.BertConfig(vocab_size=len(fast), max_position_embeddings=128, **SHAPE)
    torch.manual_seed(13)
    with quiet():
        transformers.BertModel(config).save_pretrained(folder)
        fast.save_pretrained(folder)


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

    out, data, base = folder / "run", folder / "data", folder / "base"
    os.environ["DEMO"] = str(folder)
    os.environ.setdefault("COMPRESS_HOME", str(folder / "home"))
    if not (base / "config.json").is_file():
        write(folder)
        make_base(data, base)
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
