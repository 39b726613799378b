"""Lists of Chinese words and of named entities, and dialogues, for pretraining as in ERNIE 1.0.

    COMPRESS_DATA=… python -m benchmarks.data.chinese_lists --out runs/lists

Entities are the tagged spans of the training sentences of cluener and msra_ner. Words are runs of two to four
characters of wiki_zh that stand together much more often than their parts would by chance, and are not always inside of
one and the same longer run (Sproat and Shih 1990, "A statistical method for finding word boundaries in Chinese text").
Dialogues are the questions about a paragraph of cmrc2018 or drcd, one after another, each with its answer.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import re
from collections import Counter
from pathlib import Path

RUN = re.compile(r"[\u4e00-\u9fff]+")
LONGEST, LEAST = 4, 30
"""Most characters of a word; least number of occurrences."""
COHESION = 5.0
"""Least pointwise mutual information (natural logarithm) of the two weakest parts of a word."""


def entities(data: Path) -> list[str]:
    """Return the tagged spans of two characters or more, sorted."""
    found: set[str] = set()
    for name in ("cluener", "msra_ner"):
        with (data / name / "train.jsonl").open(encoding="utf-8") as lines:
            for line in lines:
                row = json.loads(line)
                span = ""
                for token, tag in [*zip(row["tokens"], row["tags"], strict=True), ("", "O")]:
                    if tag.startswith("I-") and span:
                        span += token
                        continue
                    found.add(span)
                    span = token if tag.startswith("B-") else ""
    return sorted(span for span in found if len(span) > 1)


def words(data: Path) -> list[str]:
    """Return runs of characters that belong together, the longest first."""
    counts: Counter[str] = Counter()
    total = 0
    with gzip.open(data / "wiki_zh" / "train.txt.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            for run in RUN.findall(line):
                total += len(run)
                counts.update(
                    run[start : start + size] for size in range(1, LONGEST + 1) for start in range(len(run) - size + 1)
                )
    chosen: list[str] = []
    for word, count in counts.items():
        if len(word) < 2 or count < LEAST:
            continue
        parts = [counts[word[:cut]] * counts[word[cut:]] / total for cut in range(1, len(word))]
        if math.log(count / max(parts)) >= COHESION:
            chosen.append(word)
    inside: Counter[str] = Counter()
    for word in chosen:  # a run that occurs only inside one longer word is no word
        for size in range(2, len(word)):
            for start in range(len(word) - size + 1):
                part = word[start : start + size]
                inside[part] = max(inside[part], counts[word])
    return sorted((word for word in chosen if inside[word] < 0.9 * counts[word]), key=lambda word: (-len(word), word))


def dialogues(data: Path, split: str) -> list[list[str]]:
    """Return the turns of each dialogue of a split, questions and answers alternately."""
    found = []
    for name in ("cmrc2018", "drcd"):
        for article in json.loads((data / name / f"{split}.json").read_text(encoding="utf-8"))["data"]:
            for paragraph in article["paragraphs"]:
                pairs = [(one["question"], one["answers"][0]["text"]) for one in paragraph["qas"]]
                found.append([turn for pair in pairs for turn in pair])
    return found


def main() -> None:
    """Write ``words.txt``, ``entities.txt`` and ``dialogues/``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    data = Path(os.environ.get("COMPRESS_DATA", "data"))
    out.mkdir(parents=True, exist_ok=True)
    for name, found in (("words", words(data)), ("entities", entities(data))):
        (out / f"{name}.txt").write_text("".join(f"{one}\n" for one in found), encoding="utf-8")
        print(f"{out / name}.txt: {len(found):,} {name}, such as {', '.join(found[:: max(1, len(found) // 8)][:8])}")
    (out / "dialogues").mkdir(exist_ok=True)
    for split in ("train", "validation"):
        file = out / "dialogues" / f"{split}.jsonl"
        lines = [json.dumps({"turns": turns}, ensure_ascii=False) + "\n" for turns in dialogues(data, split)]
        file.write_text("".join(lines), encoding="utf-8")
        print(f"{file}: {len(lines):,} dialogues")


if __name__ == "__main__":
    main()
