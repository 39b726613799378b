"""Static vectors of one teacher: ``distill.static`` against model2vec's own ``distill``, on sets that chose nothing.

    COMPRESS_BASE=… COMPRESS_DATA=… python -m benchmarks.static_vectors [--texts 62000] [--size 256] [--fill]
    COMPRESS_BASE=… COMPRESS_DATA=… python -m benchmarks.static_vectors --words 8000 [--texts 62000] [--fill]

Both take the same embedder as teacher and give tables of the same width. Ours is trained on the teacher's vectors of
sentences of wiki_en, reuters21578 and of the documents of scifact and cisi, and on the titles of the latter; no text of
the tests of STS-B, SICK and banking77, and no query, is among them. Settings were chosen with ``--split validation``:
validation pairs, the training queries, and the validation texts. Differences are ours less model2vec's, with 95%
intervals of a paired bootstrap over pairs, queries and texts. Needs model2vec with its extra ``distill``. With
``--words`` both sides are ours: as many words of the training texts are tokens of their own, or none.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from benchmarks.archive import commit, keep
from benchmarks.distillation_step import base
from benchmarks.results import DOCS, fill
from compress.artifact.artifact import Artifact
from compress.distill.static import StaticDistillation
from compress.engine.steps import run
from compress.recipe import Recipe
from compress.technique import Inputs
from eval.cost.machine import in_one_line, machine
from eval.data.beir import beir_rows
from eval.inference import predict
from eval.metrics.ranked_lists import ndcg
from eval.ranking.best import largest, unit
from eval.task import Examples, TaskSpec
from teachers.signals.model_teacher import ModelTeacher
from teachers.taskmodel import TaskModel, load_taskmodel

Array = NDArray[Any]
Encode = Callable[[Sequence[str]], Array]
DRAWS, DEEPEST, LONGEST = 2000, 10, 512
NAME, WORDS = "static-vectors", "static-words"
"""Names of the records, and of the parts of the page that are made here."""
THEIRS, OURS = "model2vec", "ours"
"""The two sides of a record, the reference first."""
WITHOUT, WITH = "without words", "with words"
"""Those of ``--words``."""
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'(])")
SHARES = {"wiki_en": 30_000, "reuters21578": 10_000, "documents": 16_000}
"""Sentences of each source, where there are so many."""
SETTINGS: dict[str, Any] = {"smoothing": 1e-3, "epochs": 2, "learning_rate": 3e-3, "batch_size": 128}
"""Of ``distill.static``; chosen on the validation splits."""


def lines(file: Path) -> list[dict[str, Any]]:
    """Return the objects of a file, one a line."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def whole(document: dict[str, Any]) -> str:
    """Return the title and the text of a document."""
    return f"{document.get('title', '')} {document['text']}".strip()


def sentences(paragraphs: Sequence[str]) -> list[str]:
    """Return the sentences of 4 to 60 words."""
    found = (part.strip() for paragraph in paragraphs for part in SENTENCE.split(paragraph))
    return [part for part in found if 4 <= len(part.split()) <= 60]


def training_texts(data: Path, most: int) -> list[str]:
    """Return the unlabelled texts, in an order that a seed gives."""
    chance, sources, titles = random.Random(0), {}, []
    for name in ("wiki_en", "reuters21578"):
        with gzip.open(data / name / "train.txt.gz", "rt", encoding="utf-8") as file:
            sources[name] = sentences([line.strip() for line in file if line.strip()])
    documents = [document for name in ("scifact", "cisi") for document in lines(data / name / "corpus.jsonl")]
    titles = [document["title"] for document in documents if document.get("title")]
    sources["documents"] = sentences([whole(document) for document in documents])
    for found in sources.values():
        chance.shuffle(found)
    texts = list(dict.fromkeys(titles + [text for name, found in sources.items() for text in found[: SHARES[name]]]))
    chance.shuffle(texts)
    return texts[:most]


@dataclass(frozen=True)
class Measured:
    """What one model did on one set: a function of which examples count, and how many there are.

    Attributes:
        score: Score of the examples at these places.
        examples: Their number.
    """

    score: Callable[[Array], float]
    examples: int


def similarity(encode: Encode, data: Path, name: str, field: str, split: str) -> Measured:
    """Return Spearman's correlation of cosines and ratings."""
    rows = lines(data / name / f"{split}.jsonl")
    first, second = (encode([row[side] for row in rows]) for side in ("text_a", "text_b"))
    own, truth = (first * second).sum(axis=1), np.array([float(row[field]) for row in rows])
    return Measured(lambda at: float(np.corrcoef(rankdata(own[at]), rankdata(truth[at]))[0, 1]), len(rows))


def retrieval(encode: Encode, data: Path, name: str, split: str) -> Measured:
    """Return nDCG@10 of a search by cosine among all documents."""
    queries = [row.values for row in beir_rows(data / name)["test" if split == "test" else "train"]]
    corpus = queries[0]["corpus"]
    cosines = encode([query["text"] for query in queries]) @ encode(corpus.texts).T
    rankings = [[corpus.ids[place] for place in largest(own, DEEPEST)] for own in cosines]
    found = zip(rankings, queries, strict=True)
    values = np.array([ndcg(ranking, query["relevant"], DEEPEST) for ranking, query in found])
    return Measured(lambda at: float(values[at].mean()), len(values))


def nearest_mean(encode: Encode, data: Path, name: str, split: str) -> Measured:
    """Return the share of texts whose class has the nearest mean of training vectors."""
    train, rows = (lines(data / name / f"{part}.jsonl") for part in ("train", split))
    known, found = (encode([row["text"] for row in part]) for part in (train, rows))
    labels = sorted({row["label"] for row in train})
    owners = np.array([labels.index(row["label"]) for row in train])
    means = np.stack([known[owners == label].mean(axis=0) for label in range(len(labels))])
    right = np.array(
        [labels[i] == row["label"] for i, row in zip((found @ unit(means).T).argmax(axis=1), rows, strict=True)]
    )
    return Measured(lambda at: float(right[at].mean()), len(rows))


def measured(encode: Encode, data: Path, split: str) -> dict[str, Measured]:
    """Return what a model does on each set."""
    return {
        "STS-B, Spearman": similarity(encode, data, "stsb_en", "label", split),
        "SICK, Spearman": similarity(encode, data, "sick", "relatedness", split),
        "SciFact, nDCG@10": retrieval(encode, data, "scifact", split),
        "CISI, nDCG@10": retrieval(encode, data, "cisi", split),
        "banking77, nearest mean": nearest_mean(encode, data, "banking77", split),
    }


def compared(
    theirs: dict[str, Measured], ours: dict[str, Measured], sides: tuple[str, str] = (THEIRS, OURS)
) -> list[dict[str, Any]]:
    """Return the scores of each set and their mean, with paired intervals of the differences.

    Args:
        theirs: The reference on each set.
        ours: The candidate.
        sides: What the rows call both.

    Returns:
        One row a set, and last that of the mean with the relative ``gain`` too: ``value``, ``low`` and ``high`` each.
    """
    chance = np.random.default_rng(0)
    rows, means = [], []
    for name, own in ours.items():
        drawn = [chance.integers(0, own.examples, own.examples) for _ in range(DRAWS)]
        both = [[part[name].score(at) for part in (theirs, ours)] for at in (np.arange(own.examples), *drawn)]
        means.append(np.array(both))
        rows.append({"set": name, "examples": own.examples, **_sides(means[-1], sides)})
    mean = np.mean(means, axis=0)
    gain = _ends(mean[:, 1] / mean[:, 0] - 1)
    return [*rows, {"set": "mean", "examples": None, **_sides(mean, sides), "gain": gain}]


def _sides(both: Array, names: tuple[str, str]) -> dict[str, Any]:
    """Return what a row says of scores ``[1 + DRAWS, 2]``, the first those of all examples."""
    return {**dict(zip(names, both[0].tolist(), strict=True)), "difference": _ends(both[:, 1] - both[:, 0])}


def _ends(values: Array) -> dict[str, float]:
    low, high = np.percentile(values[1:], [2.5, 97.5])
    return {"value": float(values[0]), "low": float(low), "high": float(high)}


def report(found: Mapping[str, Any]) -> str:
    """Return the part of the page: our scores beside those of model2vec, and the gain of their mean."""
    said = f"ours against model2vec {found['model2vec']}"
    return _report(found, {THEIRS: "model2vec", OURS: "distill.static"}, said)


def words_report(found: Mapping[str, Any]) -> str:
    """Return the part of the page: scores without and with words as tokens of their own, and the gain of their mean."""
    return _report(found, {WITHOUT: WITHOUT, WITH: WITH}, f"`words: {found['words']}` against none")


def _report(found: Mapping[str, Any], sides: Mapping[str, str], said: str) -> str:
    lines = [
        f"| set | examples | {' | '.join(sides.values())} | difference | 95% |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for row in found["sets"]:
        scores, more = " | ".join(f"{100 * row[side]:.2f}" for side in sides), row["difference"]
        ends = f"{100 * more['low']:+.2f} to {100 * more['high']:+.2f}"
        lines.append(f"| {row['set']} | {row['examples'] or ''} | {scores} | {100 * more['value']:+.2f} | {ends} |")
    gain = found["sets"][-1]["gain"]
    told = f"Mean of the sets, {said}: {gain['value']:+.1%}, 95% {gain['low']:+.1%} to {gain['high']:+.1%}. "
    told += f"{found['size']} columns, trained on {found['texts']:,} texts, scored on the split {found['split']}."
    return "\n".join([*lines, "", told, "", f"{in_one_line(found['machine'])}; commit {found['commit']}"])


def encoder_of(model: TaskModel) -> Encode:
    """Return what gives the vectors of texts, of a model of ours."""

    def encode(texts: Sequence[str]) -> Array:
        return np.stack([rows[0] for rows in predict(model, [{"text": text} for text in texts]).logits])

    return encode


def of_model2vec(folder: str | Path, size: int) -> Encode:
    """Return what gives the vectors of texts, of model2vec's own ``distill``."""
    from model2vec.distill import distill

    model = distill(folder, pca_dims=size, device="cpu")
    return lambda texts: unit(model.encode(list(texts)))


def distilled(teacher: TaskModel, texts: Sequence[str], size: int, source: Any = None, **settings: Any) -> Artifact:
    """Return our static vectors.

    Args:
        teacher: The embedder.
        texts: What the table is trained on.
        size: Columns of the table.
        source: Where the teacher's vectors come from, if not from the model itself.
        settings: Of ``distill.static``.
    """
    train = Examples([{"text": text} for text in texts], "train")
    step = StaticDistillation(embedding_size=size, **{**SETTINGS, **settings})
    inputs = Inputs(train=train, teacher=source or ModelTeacher(teacher))
    return run(Recipe(steps=(step,)), teacher, inputs, dry_run_first=False)


def main(arguments: Sequence[str] | None = None) -> None:
    """Make both models and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=62_000, help="most texts that ours is trained on")
    parser.add_argument("--size", type=int, default=256, help="columns of both tables")
    parser.add_argument("--split", choices=("validation", "test"), default="test")
    parser.add_argument("--words", type=int, default=0, help="compare so many words of the texts as tokens with none")
    parser.add_argument("--save", type=Path, help="keep our model in this folder, that with words where both are ours")
    parser.add_argument("--fill", action="store_true", help="keep the record, and write the page anew")
    given = parser.parse_args(arguments)
    folder, data = base(), Path(os.environ["COMPRESS_DATA"])
    spec = TaskSpec(kind="embedding", metric="spearman", pair=True, max_length=LONGEST)
    teacher = load_taskmodel(folder, spec)
    texts = training_texts(data, given.texts)
    settings: dict[str, Any] = {"size": given.size, "texts": len(texts), "split": given.split}
    if given.words:
        name, text_of, sides = WORDS, words_report, (WITHOUT, WITH)
        other = encoder_of(distilled(teacher, texts, given.size))
        ours = distilled(teacher, texts, given.size, words=given.words)
        settings["words"] = given.words
    else:
        name, text_of, sides = NAME, report, (THEIRS, OURS)
        other = of_model2vec(folder, given.size)
        ours = distilled(teacher, texts, given.size)
        settings["model2vec"] = version("model2vec")
    if given.save is not None:
        ours.save(given.save)
    theirs, own = (measured(encode, data, given.split) for encode in (other, encoder_of(ours)))
    found = {"machine": machine(), "commit": commit(), **settings, "sets": compared(theirs, own, sides)}
    print(text_of(found))
    if given.fill:
        fill(DOCS / "embedders.md", name, text_of(keep(name, found)))


if __name__ == "__main__":
    main()
