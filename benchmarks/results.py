"""Make the tables of a page of docs/results, in one resumable command.

    COMPRESS_DATA=… COMPRESS_BASE=… python -m benchmarks.results distillation --out runs [--seeds 1] [--only sst2]

It prepares the inputs of the page's studies (the SST-2 teacher and its fixed part, a student of general distillation, a
small Chinese base), runs the studies, each in its own folder below ``--out``, and puts their tables into the page,
between ``<!-- study NAME -->`` and ``<!-- end -->``, and their plots into docs/results/plots. Existing runs are not
repeated; ``--table`` runs nothing and writes existing results. A row that was not run here, or with fewer seeds, stays
as on the page: a page takes hours on two cores, and several machines may share them.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import pretrained, sst2
from benchmarks.study import MISSING, Study, draw_plots, run_study, table
from compress.engine.pipeline import run_recipe
from compress.recipe import read_recipe
from eval.files.writing import atomic_write

HERE = Path(__file__).parent
RECIPES = HERE.parent / "recipes"
DOCS = HERE.parent / "docs" / "results"
PAGES = {
    "distillation": (
        "distil-sst2",
        "distil-sst2-full",
        "distil-sst2-shapes",
        "distil-mrpc",
        "distil-stsb",
        "distil-conll2003",
        "distil-squad",
        "distil-thucnews",
        "distil-embedding",
        "distil-sick",
        "distil-banking77",
    ),
    "pruning": ("prune-sst2",),
    "quantization": ("quantize-sst2",),
    "sharing": ("share-sst2",),
    "replacing": ("replace-sst2", "replace-sst2-base"),
    "teachers": (
        "teachers-sst2",
        "teachers-conll2003",
        "teachers-stsb",
        "teachers-thucnews",
        "teachers-msra",
        "teachers-strategies",
        "teachers-line",
    ),
    "combined": ("combined-sst2", "families-mrpc", "families-conll2003", "families-squad"),
}
"""Page of docs/results -> its studies in the order of running; some start from models of earlier ones."""


def ingredients(out: Path) -> dict[str, Callable[[], Path]]:
    """Return the environment variables that the studies read, each with the function that makes its value."""
    return {
        "SST2_TEACHER": sst2.teacher_folder,
        "SST2_PART": lambda: sst2.part_folder(out / "sst2"),
        "SST2_REST": lambda: sst2.rest_file(out / "sst2"),
        "SST2_GENERAL": lambda: general(out),
        "DISTIL_GENERAL": lambda: from_text(out),
        "DISTIL_EMBEDDING": lambda: out / "distil-embedding",
        "PRUNE_SST2": lambda: out / "prune-sst2",
        "CHINESE_BASE": lambda: pretrained.network("ernie", out / "pretrained"),
        "PRETRAINED": lambda: pretrained.networks(out / "pretrained"),
    }


def general(out: Path) -> Path:
    """Return the student of general distillation, which is trained if it is not there."""
    folder = out / "wiki-tinybert-cut"
    return run_recipe(read_recipe(RECIPES / "wiki-tinybert-cut.yaml"), folder, resume=True).folder / "model"


def from_text(out: Path) -> Path:
    """Return the folder of the students distilled on unlabelled text, which are trained if they do not exist.

    Raises:
        SystemExit: If one could not be trained.
    """
    folder = out / "distil-general"
    found = run_study(Study.read(HERE / "studies" / "distil-general.yaml"), folder)
    failures = [f"{row}: {outcome.failure}" for row, outcome in found.items() if outcome.failure]
    if failures:
        raise SystemExit("\n".join(failures))
    return folder


def words(study: Path) -> str:
    """Return the text of a study and of the one that it is like."""
    text = study.read_text(encoding="utf-8")
    return text + "".join(words(study.parent / name) for name in re.findall(r"^like: (\S+)$", text, flags=re.MULTILINE))


def fill(page: Path, study: str, lines: str) -> None:
    """Put a table between the marks of its study; rows that were not run, or with fewer seeds, stay as they are.

    Raises:
        SystemExit: If the page has no place for it.
    """
    text = page.read_text(encoding="utf-8")
    place = re.compile(rf"(<!-- study {re.escape(study)} -->\n)(.*?)(<!-- end -->)", flags=re.DOTALL)
    found = place.subn(lambda marks: f"{marks[1]}\n{kept(lines, marks[2])}\n\n{marks[3]}", text)
    if not found[1]:
        raise SystemExit(f"{page}: has no place for {study}: <!-- study {study} --> and <!-- end -->")
    atomic_write(page, found[0].encode("utf-8"))


def kept(lines: str, earlier: str) -> str:
    """Return a Markdown table in which rows of an earlier one stay that were not run again, or with fewer seeds.

    Rows are the same if their first cells are, and tables if their headings are.
    """
    new, old = lines.splitlines(), earlier.splitlines()
    if not new or new[0] not in old:
        return lines
    known = {line.split(" | ")[0]: line for line in old}
    return "\n".join(_better(line, known.get(line.split(" | ")[0], line)) for line in new)


def _better(new: str, old: str) -> str:
    """Return the earlier row where the new one was not run, or ran with fewer seeds, which stand in brackets."""
    seeds, before = (re.findall(r"\((\d+)\)", line) for line in (new, old))
    fewer = bool(seeds and before) and int(seeds[0]) < int(before[0])
    return old if fewer or f"| {MISSING} |" in new else new


def main() -> None:
    """Make what is missing and write the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("page", choices=PAGES)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--only", default="", help="studies whose name contains this")
    parser.add_argument("--seeds", type=int, help="run only this many of the first seeds")
    parser.add_argument("--table", action="store_true", help="run nothing; write existing results")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    out = given.out.resolve()
    files = {name: HERE / "studies" / f"{name}.yaml" for name in PAGES[given.page] if given.only in name}
    text = "".join(map(words, files.values()))
    for name, make in ingredients(out).items():
        if name in text and name not in os.environ and not given.table:
            os.environ[name] = str(make().resolve())
    for name, file in files.items():
        study = Study.read(file)
        found = run_study(study, out / name, seeds=given.seeds, train=not given.table)
        fill(DOCS / f"{given.page}.md", name, table(study, found))
        draw_plots(study, found, DOCS / "plots")
    if given.page == "teachers":
        fill(DOCS / "teachers.md", "pretrained", pretrained.table(out / "pretrained"))


if __name__ == "__main__":
    main()
