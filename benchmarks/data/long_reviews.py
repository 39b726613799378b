"""Keep the long texts of a task, for benchmarks/studies/long-imdb-reviews.yaml.

    python -m benchmarks.data.long_reviews DATA/imdb --out DATA/imdb_long [--words 400]

Each split of the new folder has the examples of the same split whose ``text`` has that many words or more. 400 words of
IMDB are about 512 subword tokens.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from eval.files.writing import atomic_folder

SPLITS = ("train", "validation", "test")


def written(data: Path, out: Path, words: int = 400) -> Path:
    """Write the folder, unless it is there, and return it.

    Args:
        data: A task with ``text`` in its examples.
        out: The folder to write.
        words: Fewest words, between white space, of a text that stays.

    Raises:
        SystemExit: A split is missing, or none of its texts is as long.
    """
    if out.is_dir():
        return out
    kept, problems = {}, []
    for split in SPLITS:
        file = data / f"{split}.jsonl"
        lines = file.read_text(encoding="utf-8").strip("\n").split("\n") if file.is_file() else []
        kept[split] = [line for line in lines if len(json.loads(line)["text"].split()) >= words]
        if not kept[split]:
            problems.append(
                f"{file}: {'no text of' if lines else 'is missing; there is nothing of'} {words} words or more"
            )
    if problems:
        raise SystemExit("\n".join(problems))
    with atomic_folder(out, "the long texts") as beside:
        for split, lines in kept.items():
            (beside / f"{split}.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return out


def main() -> None:
    """Write the folder and say what is in it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--words", type=int, default=400)
    given = parser.parse_args()
    made = written(given.data, given.out, given.words)
    for split in SPLITS:
        texts = (made / f"{split}.jsonl").read_bytes().count(b"\n")
        print(f"{split}: {texts:,} texts")


if __name__ == "__main__":
    main()
