"""Bring sentences together that a student learns from without labels.

    COMPRESS_DATA=… python -m benchmarks.data.general_sentences --out sentences.txt
    COMPRESS_DATA=… python -m benchmarks.data.general_sentences --reviews --count 30000 --out film_sentences.txt

For embedders they come from pairs of sentences (MNLI, QQP, QNLI, MRPC, RTE), captions, news, comments and Wikipedia. No
text of the sets on which the embedders are judged (SICK, banking77, STS-B) is among them; captions of pictures are, as
in SICK. ``--reviews`` takes sentences of IMDB's training reviews, for students of SST-2; none of SST-2 is among them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.data.whole_sentences import by_hash
from eval.files.writing import atomic_write

SOURCES = {
    "mnli": ("text_a", "text_b"),
    "qqp": ("text_a", "text_b"),
    "qnli": ("text_a", "text_b"),
    "mrpc": ("text_a", "text_b"),
    "rte": ("text_a", "text_b"),
    "multi30k_de_en": ("target",),
    "ag_news": ("text",),
    "goemotions": ("text",),
}
"""Data set -> the fields of its examples that hold English text."""
JUDGED = {"sick": ("text_a", "text_b"), "stsb_en": ("text_a", "text_b"), "banking77": ("text",)}
COUNT = 120_000
WORDS = (3, 60)
"""The fewest and the most words of a sentence that is taken."""


def fields(folder: Path, names: Iterable[str], splits: Iterable[str] = ("train",)) -> Iterator[str]:
    """Yield the texts of a data set, field by field."""
    for split in splits:
        file = folder / f"{split}.jsonl"
        for line in file.read_bytes().splitlines() if file.is_file() else ():
            row = json.loads(line)
            yield from (row[name].strip() for name in names)


def sentences(text: str) -> list[str]:
    """Return the sentences of a paragraph, as far as full stops tell.

    Examples:
        >>> sentences("It rained. We stayed at home! Why not?")
        ['It rained.', 'We stayed at home!', 'Why not?']
    """
    return re.split(r"(?<=[.!?])\s+(?=[A-Z])", text.strip())


def drawn(texts: Iterable[str], left_out: Iterable[str] = (), count: int = COUNT) -> list[str]:
    """Return so many different texts of fitting length, drawn by a hash of each.

    Args:
        texts: All there are.
        left_out: Texts that may not be among them, whatever their case.
        count: How many.

    Examples:
        >>> sorted(drawn(["one two three", "one two three", "too short", "Four five six"], ["four five SIX"]))
        ['one two three']
    """
    judged = {text.casefold() for text in left_out}
    fitting = {text for text in texts if WORDS[0] <= len(text.split()) <= WORDS[1] and text.casefold() not in judged}
    return by_hash(fitting, count)


def of_many_kinds(data: Path) -> Iterator[str]:
    """Yield paragraphs of Wikipedia, of which the short ones are taken, and the texts of ``SOURCES``."""
    with gzip.open(data / "wiki_en" / "train.txt.gz", "rt", encoding="utf-8") as lines:
        yield from (line.strip() for line in lines)
    for name, parts in SOURCES.items():
        yield from fields(data / name, parts)


def of_reviews(data: Path) -> Iterator[str]:
    """Yield the sentences of IMDB's training reviews."""
    for review in fields(data / "imdb", ("text",)):
        yield from sentences(review)


def written(data: Path, file: Path, reviews: bool = False, count: int = COUNT) -> Path:
    """Write the sentences, or find the file; return it."""
    if not file.is_file():
        found = of_reviews(data) if reviews else of_many_kinds(data)
        splits = ("train", "validation", "test")
        sets = {"sst2": ("text",)} if reviews else JUDGED
        judged = [text for name, parts in sets.items() for text in fields(data / name, parts, splits)]
        file.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(file, "".join(f"{' '.join(text.split())}\n" for text in drawn(found, judged, count)).encode())
    return file


def main() -> None:
    """Write the file and say how many sentences it holds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the file to write")
    parser.add_argument("--reviews", action="store_true", help="sentences of film reviews")
    parser.add_argument("--count", type=int, default=COUNT, help=f"how many ({COUNT:,})")
    given = parser.parse_args()
    file = written(Path(os.environ["COMPRESS_DATA"]), given.out, given.reviews, given.count)
    print(f"{file}: {len(file.read_text(encoding='utf-8').splitlines()):,} sentences")


if __name__ == "__main__":
    main()
