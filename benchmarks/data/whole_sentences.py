"""Have whole sentences choose on SST-2, whose training examples are phrases of them.

    COMPRESS_DATA=… python -m benchmarks.data.whole_sentences --out DATA/sst2_sentences

GLUE's SST-2 learns from 67,000 phrases and is judged on whole sentences. Phrases drawn by chance are easier than
sentences, and most stand inside of a longer phrase that is learned from, so what is chosen on them (an epoch, from when
on a model answers early) is chosen on the wrong examples. This writes a copy of the data in which sentences choose:
``validation`` has sentences that stand inside of no other phrase, ``train`` all phrases but these and what is inside
of them, and ``test`` is GLUE's validation split, which has the labels that its test split keeps secret.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from eval.files.writing import atomic_write

COUNT = 1000
LEAST_WORDS = 8
"""Words of a sentence that chooses; sentences of GLUE's validation split have 19 on average, and few have less."""
COMMON_WORDS = 2
"""Phrases of up to so many words stay in train: they belong to no one sentence."""


def whole(texts: Sequence[str]) -> list[str]:
    """Return the texts that stand inside of no other, word by word, the longest first."""
    found: list[str] = []
    seen = " "
    for text in sorted(set(texts), key=lambda text: (-len(text), text)):
        if f" {text.strip()} " not in seen:
            found.append(text)
            seen += f"{text.strip()} | "
    return found


def by_hash(texts: Iterable[str], count: int) -> list[str]:
    """Return so many of the texts, drawn by a hash of each."""
    return sorted(texts, key=lambda text: hashlib.sha256(text.encode()).hexdigest())[:count]


def parted(examples: Sequence[dict[str, Any]], count: int = COUNT) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return what is learned from, and the sentences that choose.

    Args:
        examples: Phrases, each with a ``text``.
        count: Sentences that choose, drawn by a hash of their text.
    """
    long = [text for text in whole([row["text"] for row in examples]) if len(text.split()) >= LEAST_WORDS]
    drawn = set(by_hash(long, count))
    inside = " " + " | ".join(sorted(text.strip() for text in drawn)) + " "

    def learned(text: str) -> bool:
        return len(text.split()) <= COMMON_WORDS or f" {text.strip()} " not in inside

    train = [row for row in examples if learned(row["text"])]
    return train, [row for row in examples if row["text"] in drawn]


def main() -> None:
    """Write the copy."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    source = Path(os.environ["COMPRESS_DATA"]) / "sst2"
    examples = [json.loads(line) for line in (source / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    train, select = parted(examples)
    given.out.mkdir(parents=True, exist_ok=True)
    atomic_write(given.out / "test.jsonl", (source / "validation.jsonl").read_bytes())
    for name, rows in (("train", train), ("validation", select)):
        lines = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
        atomic_write(given.out / f"{name}.jsonl", lines.encode("utf-8"))
    print(f"{len(train):,} of {len(examples):,} phrases to learn from, {len(select):,} sentences that choose")


if __name__ == "__main__":
    main()
