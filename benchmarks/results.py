"""Make the tables of a page of docs/results, in one resumable command.

    COMPRESS_DATA=… COMPRESS_BASE=… python -m benchmarks.results distillation --out runs [--seeds 1] [--only sst2]

It prepares the inputs of the page's studies (students of general distillation, adapters, pretrained networks, facts,
a small Chinese base), runs the studies, each in its own folder below ``--out``, and puts their tables into the page,
between ``<!-- study NAME -->`` and ``<!-- end -->``, and their plots into docs/results/plots. Tables are made from the
records in benchmarks/results alone (``benchmarks.archive``): a row of which there is a record is not run again, and one
without is named below the table as not measured yet. A page takes hours on two cores, and several machines may share
them: commit the records.
``--table`` runs nothing and writes the tables; ``python -m benchmarks.figures`` does so for all pages.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import place_facts, pretrained, small_reranker
from benchmarks.archive import Archive, plain
from benchmarks.data import general_sentences, long_reviews, squad_documents
from benchmarks.study import LAST, Study, block, draw_plots, outcomes, run_study
from eval.files.writing import atomic_write

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs" / "results"
PAGES = {
    "distillation": (
        "distil-intents",
        "distil-intents-shapes",
        "distil-mrpc",
        "distil-stsb",
        "distil-conll2003",
        "distil-scalar-mix",
        "distil-squad",
        "distil-chinese",
        "distil-objectives",
        "distil-recommended",
        "distil-gpt2",
    ),
    "base": (
        "distil-sst2-base",
        "distil-tasks-base",
        "distil-tasks-longer",
        "distil-pairs-base",
        "distil-agnews-base",
        "distil-further-base",
        "distil-squad-base",
        "distil-sst2-narrow",
    ),
    "few-labels": (
        "few-labels-sst2",
        "few-labels-sst2-again",
        "few-labels-agnews",
        "few-labels-banking77",
        "few-labels-banking77-longer",
        "few-labels-conll2003",
        "few-labels-conll2003-again",
        "few-labels-pooling",
        "few-labels-pooling-agnews",
        "few-labels-pooling-emotions",
        "few-labels-dropout",
    ),
    "pruning": ("prune-intents", "prune-tokens-imdb"),
    "quantization": ("quantize-intents",),
    "sharing": ("share-intents", "adaptive-depth-intents"),
    "replacing": ("replace-intents", "replace-intents-base"),
    "teachers": (
        "teachers-sst2",
        "teachers-conll2003",
        "teachers-stsb",
        "teachers-thucnews",
        "teachers-msra",
        "teachers-strategies",
        "teachers-line",
        "teachers-entities",
        "teachers-k-adapter",
        "teachers-subjects",
        "teachers-unilm",
        "families-xlnet",
        "families-xlm",
        "long-imdb",
        "long-imdb-reviews",
    ),
    "combined": ("combined-sst2", "families-mrpc", "families-conll2003", "families-squad"),
    "embedders": (
        "distil-embedding",
        "distil-sick",
        "distil-banking77",
        "retrieval-scifact",
        "retrieval-cisi",
        "retrieval-squad",
        "retrieval-scifact-base",
        "retrieval-cisi-base",
        "retrieval-squad-base",
        "reranking-squad",
        "retrieval-pairs",
    ),
}
"""Page of docs/results -> its studies in the order of running; some start from models of earlier ones."""


def ingredients(out: Path, text: str) -> dict[str, Callable[[], Path]]:
    """Return the environment variables that the studies of a text read, each with the function that makes its value."""
    return {
        "DISTIL_GENERAL": lambda: models_of("distil-general", out),
        "K_ADAPTERS": lambda: models_of("k-adapters", out),
        "DISTIL_EMBEDDING": lambda: out / "distil-embedding",
        "RERANKER": lambda: out / "reranking-squad",
        "PRUNE_INTENTS": lambda: out / "prune-intents",
        "LONG_BERT": lambda: out / "long-imdb-reviews",
        "CHINESE_BASE": lambda: pretrained.network("ernie", out / "pretrained"),
        "COMPRESS_BASE_GPT2": lambda: pretrained.network("gpt2", out / "pretrained"),
        "SQUAD_THREE_LAYERS": lambda: small_reranker.made(out),
        "SQUAD_THREE_LONGER": lambda: small_reranker.made(out, "three-layers-longer"),
        "SQUAD_THREE_LOW_RATE": lambda: small_reranker.made(out, "three-layers-low-rate"),
        "SQUAD_SIX_LAYERS": lambda: small_reranker.made(out, "six-layers"),
        "SQUAD_SEARCH": lambda: squad_documents.written(
            Path(os.environ["COMPRESS_DATA"]) / "squad1", out / "squad_search"
        ),
        "LONG_REVIEWS": lambda: long_reviews.written(Path(os.environ["COMPRESS_DATA"]) / "imdb", out / "imdb_long"),
        "GENERAL_SENTENCES": lambda: general_sentences.written(
            Path(os.environ["COMPRESS_DATA"]), out / "sentences.txt"
        ),
        "FILM_SENTENCES": lambda: general_sentences.written(
            Path(os.environ["COMPRESS_DATA"]), out / "film_sentences.txt", reviews=True
        ),
        "COMPRESS_FACTS": lambda: place_facts.written(out / "facts.tsv"),
        "PRETRAINED": lambda: pretrained.networks(out / "pretrained", text),
    }


def models_of(name: str, out: Path) -> Path:
    """Return the folder of the models of a study that measures nothing, which are trained if they do not exist.

    Raises:
        SystemExit: If one could not be trained.
    """
    folder = out / name
    study = Study.read(HERE / "studies" / f"{name}.yaml")
    run_study(study, folder, Archive())
    missing = [row for row in study.rows if not (folder / f"{plain(row)}-{study.seeds[0]}" / LAST).is_file()]
    if missing:
        raise SystemExit(f"{name}: could not be trained: {', '.join(missing)}")
    return folder


def words(study: Path) -> str:
    """Return the text of a study and of the one that it is like."""
    text = study.read_text(encoding="utf-8")
    return text + "".join(words(study.parent / name) for name in re.findall(r"^like: (\S+)$", text, flags=re.MULTILINE))


def blocks(page: Path) -> dict[str, str]:
    """Return what stands on a page between the marks of each study or program."""
    found = re.findall(r"<!-- study (\S+) -->\n(.*?)<!-- end -->", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return {name: text.strip() for name, text in found}


def fill(page: Path, study: str, lines: str) -> None:
    """Put a table between the marks of its study.

    Raises:
        SystemExit: If the page has no place for it.
    """
    text = page.read_text(encoding="utf-8")
    place = re.compile(rf"(<!-- study {re.escape(study)} -->\n)(.*?)(<!-- end -->)", flags=re.DOTALL)
    found = place.subn(lambda marks: f"{marks[1]}\n{lines}\n\n{marks[3]}", text)
    if not found[1]:
        raise SystemExit(f"{page}: has no place for {study}: <!-- study {study} --> and <!-- end -->")
    atomic_write(page, found[0].encode("utf-8"))


def main() -> None:
    """Make what is missing and write the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("page", choices=PAGES)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--only", default="", help="studies whose name contains this")
    parser.add_argument("--seeds", type=int, help="run only this many of the first seeds")
    parser.add_argument("--table", action="store_true", help="run nothing; write the tables")
    parser.add_argument("--again", action="store_true", help="run rows whose record is there and whose folder is not")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    out = given.out.resolve()
    files = {name: HERE / "studies" / f"{name}.yaml" for name in PAGES[given.page] if given.only in name}
    text = "".join(map(words, files.values()))
    for name, make in ingredients(out, text).items():
        if name in text and name not in os.environ and not given.table:
            os.environ[name] = str(make().resolve())
    archive = Archive()
    for name, file in files.items():
        study = Study.read(file)
        if not given.table:
            run_study(study, out / name, archive, seeds=given.seeds, again=given.again)
        write(study, DOCS / f"{given.page}.md", archive)
    if given.page == "teachers" and not given.table:
        fill(DOCS / "teachers.md", "pretrained", pretrained.report(pretrained.kept(out / "pretrained")))


def write(study: Study, page: Path, archive: Archive) -> None:
    """Write table and plots of a study; one of which nothing was measured needs no place on its page."""
    found = outcomes(study, archive)
    if study.name not in blocks(page) and all(outcome.missing for outcome in found.values()):
        return
    fill(page, study.name, block(study, found))
    draw_plots(study, found, DOCS / "plots")


if __name__ == "__main__":
    main()
