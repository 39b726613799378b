"""Make a search in paragraphs from question answering data, for benchmarks/studies/retrieval-squad.yaml.

    python -m benchmarks.data.squad_documents DATA/squad1 --out DATA/squad_search [--questions 3000] [--all-to-learn]

The documents are the paragraphs of ``train.json``, ``validation.json`` and ``test.json``, each once, with the title of
their article; a question is a query, and the paragraph that answers it is the relevant document. The split without
which nothing could be reported is ``test``: where there is no ``test.json``, ``validation.json`` is it. Questions are
drawn by a fixed seed, some of every split; ``--all-to-learn`` adds the others of ``train.json`` and leaves the other
splits as they are.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

from eval.files.writing import atomic_write

SEED = 13
SPLITS = {"train": "train", "validation": "dev", "test": "test"}
"""Files in SQuAD's format -> files of judgements in the layout of BEIR."""


def searched(
    articles: dict[str, list[dict[str, Any]]], questions: int, all_to_learn: bool = False
) -> dict[str, list[Any]]:
    """Return the rows of ``corpus``, ``queries`` and of each file of judgements.

    Args:
        articles: The articles of each split, in SQuAD's format.
        questions: Most of a split.
        all_to_learn: Whether the questions of ``train`` that were not drawn follow those that were.
    """
    chance, documents = random.Random(SEED), dict[str, dict[str, str]]()
    names = {name: "test" if name == "validation" and "test" not in articles else SPLITS[name] for name in articles}
    found: dict[str, list[Any]] = {"queries": [], **{judged: [] for judged in names.values()}}
    chosen: list[tuple[str, dict[str, str], str]] = []
    others: list[tuple[str, dict[str, str], str]] = []
    for name, judged in names.items():
        asked = []
        for article in articles[name]:
            for paragraph in article["paragraphs"]:
                text = paragraph["context"]
                own = {"_id": f"d{len(documents)}", "title": article.get("title", "").replace("_", " "), "text": text}
                document = documents.setdefault(text, own)
                asked += [(question, document["_id"]) for question in paragraph["qas"]]
        drawn = chance.sample(range(len(asked)), min(questions, len(asked)))
        chosen += [(judged, *asked[number]) for number in drawn]
        if all_to_learn and name == "train":
            others = [(judged, *asked[number]) for number in sorted(set(range(len(asked))) - set(drawn))]
    for judged, question, document_id in [*chosen, *others]:  # so that those drawn have the same ids without the others
        query = f"q{len(found['queries'])}"
        found["queries"].append({"_id": query, "text": question["question"].strip()})
        found[judged].append((query, document_id, 1))
    return {"corpus": list(documents.values()), **found}


def written(data: Path, out: Path, questions: int = 3000, all_to_learn: bool = False) -> Path:
    """Write the folder, unless it is there, and return it.

    Raises:
        SystemExit: There is no file of questions.
    """
    if (out / "corpus.jsonl").is_file():
        return out
    files = {name: data / f"{name}.json" for name in SPLITS}
    articles = {
        name: json.loads(file.read_text(encoding="utf-8"))["data"] for name, file in files.items() if file.is_file()
    }
    if not articles:
        raise SystemExit(f"{data}: has no {', '.join(f'{name}.json' for name in SPLITS)} in the format of SQuAD")
    found = searched(articles, questions, all_to_learn)
    (out / "qrels").mkdir(parents=True, exist_ok=True)
    for name, rows in found.items():
        if name not in ("corpus", "queries"):
            lines = ["\t".join(map(str, row)) for row in (("query-id", "corpus-id", "score"), *rows)]
            (out / "qrels" / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for name in ("queries", "corpus"):
        lines = [json.dumps(row, ensure_ascii=False) for row in found[name]]
        atomic_write(out / f"{name}.jsonl", ("\n".join(lines) + "\n").encode("utf-8"))
    return out


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--questions", type=int, default=3000, help="maximum number of questions per split")
    parser.add_argument("--all-to-learn", action="store_true", help="add the other questions of train.json")
    given = parser.parse_args()
    print(written(given.data, given.out, given.questions, given.all_to_learn))


if __name__ == "__main__":
    main()
