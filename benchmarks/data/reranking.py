"""Make pairs of a question and a paragraph from question answering data, for compress/recipes/squad-reranker.yaml.

    python -m benchmarks.data.reranking DATA/squadshifts_wiki --out runs/squad-pairs [--questions 1500] [--others 3]

Every question is paired with the paragraph that answers it (``yes``) and with other paragraphs of the same article
(``no``), so that common words do not distinguish them. Questions and paragraphs are drawn by a fixed seed.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path

SEED = 13


def pairs(file: Path, questions: int, others: int) -> Iterator[dict[str, str]]:
    """Yield the pairs of a file in SQuAD's format; articles with too few paragraphs are skipped."""
    chance = random.Random(SEED)
    asked = []
    for article in json.loads(file.read_text(encoding="utf-8"))["data"]:
        contexts = [paragraph["context"] for paragraph in article["paragraphs"]]
        if len(contexts) > others:
            asked += [
                (question["question"], own, contexts)
                for own, paragraph in enumerate(article["paragraphs"])
                for question in paragraph["qas"]
            ]
    for question, own, contexts in chance.sample(asked, min(questions, len(asked))):
        wrong = chance.sample([number for number in range(len(contexts)) if number != own], others)
        for number in (own, *wrong):
            yield {"text_a": question, "text_b": contexts[number], "label": "yes" if number == own else "no"}


def main() -> None:
    """Write the pairs of every split."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--questions", type=int, default=1500, help="maximum number of questions per split")
    parser.add_argument("--others", type=int, default=3, help="paragraphs without the answer, per question")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for file in sorted(given.data.glob("*.json")):
        lines = [json.dumps(pair, ensure_ascii=False) for pair in pairs(file, given.questions, given.others)]
        (given.out / f"{file.stem}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{given.out / file.stem}.jsonl: {len(lines)} pairs")


if __name__ == "__main__":
    main()
