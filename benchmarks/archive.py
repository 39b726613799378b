"""The data behind the tables: for each row of a study and each seed a small compressed record, kept in the repository.

``benchmarks/results/STUDY/ROW-SEED.json.xz`` holds what was measured (the ``Result`` of student, export and reference),
every prediction as far as scores and comparisons read it, seconds, and what it was made with: command, commit,
environment, machine and versions. ``benchmarks/results/examples`` holds the truth of a split once, by its digest, and
``benchmarks/results/predictions`` those of a reference once, by theirs. A record belongs to one row and seed, so that
machines which run different rows write different files. Equal records have equal bytes.

    python -m benchmarks.archive [STUDY…]        # what there is, one line a record
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from eval.cost.machine import machine
from eval.errors import UserError
from eval.files.json_text import parse_json
from eval.files.writing import atomic_write
from eval.kinds.kind_registry import kind_of
from eval.naming import without_paths
from eval.predictions import Kept
from eval.result import Result
from eval.scores import per_example, score

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
SUFFIX = ".json.xz"
EXAMPLES, PREDICTIONS = "examples", "predictions"
"""Folders of what records share: the truths of a split, the predictions of a reference."""
CLOSE = 1e-6
"""How far a score recomputed from the record may be from the one that was measured; numbers are kept in float32."""
_LOCAL = re.compile(r"(?<![\w.…])(?:~|[A-Za-z]:)?(?:[/\\][\w.@+-]+)+[/\\](?=[\w.])")


@dataclass(frozen=True)
class Run:
    """One row of a study with one seed.

    Attributes:
        recipe: Digest of what the study says of the row, before variables are expanded.
        student: The model of the run; None if the run failed.
        export: The export that the table shows.
        reference: What the student is held against.
        seconds: Seconds of all steps.
        failure: Why the run failed.
        made: How it was made: ``command``, ``commit``, ``environment``, versions of the ``techniques``.
    """

    recipe: str
    student: Result | None = None
    export: Result | None = None
    reference: Result | None = None
    seconds: float = 0.0
    failure: str = ""
    made: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Archive:
    """Records below a folder.

    Attributes:
        folder: ``benchmarks/results``, or another one.
    """

    folder: Path = RESULTS

    def place(self, study: str, row: str, seed: int) -> Path:
        """Return the file of one record."""
        return self.folder / study / f"{plain(row)}-{seed}{SUFFIX}"

    def save(self, study: str, row: str, seed: int, run: Run) -> None:
        """Write the record of one row and seed; a failure does not take the place of results of the same recipe."""
        place = self.place(study, row, seed)
        if run.student is None and place.is_file() and _facts(place)["recipe"] == run.recipe:
            return
        facts: dict[str, Any] = {"study": study, "row": row, "seed": seed, "recipe": run.recipe}
        facts |= {"seconds": round(run.seconds, 3), "failure": _without_places(run.failure), "made": dict(run.made)}
        for name in ("student", "export"):
            result = getattr(run, name)
            facts[name] = None if result is None else self._values(result) | {"answers": self._columns(result)}
        if run.reference is not None:
            columns = self._columns(run.reference)
            digest = self._share(PREDICTIONS, digest_of(columns), columns)
            facts["reference"] = self._values(run.reference) | {"answers": digest}
        _write(place, facts)

    def load(self, study: str) -> dict[str, dict[int, Run]]:
        """Return the records of a study: row -> seed -> run, in the order of seeds.

        Raises:
            UserError: A record cannot be read, or its score does not follow from its predictions.
        """
        found: dict[str, dict[int, Run]] = {}
        for place in self._places(study):
            facts = _facts(place)
            results = (self._result(facts.get(name), place) for name in ("student", "export", "reference"))
            student, export, reference = results
            of_the_run = facts["seconds"], facts["failure"], facts["made"]
            run = Run(facts["recipe"], student, export, reference, *of_the_run)
            found.setdefault(facts["row"], {})[facts["seed"]] = run
        return {row: dict(sorted(runs.items())) for row, runs in found.items()}

    def has(self, study: str, row: str, seed: int, recipe: str) -> bool:
        """Return whether there are results of this row and seed, made by this recipe."""
        place = self.place(study, row, seed)
        facts = _facts(place) if place.is_file() else {}
        return facts.get("recipe") == recipe and facts.get("student") is not None

    def studies(self) -> list[str]:
        """Return the names of the studies that have records."""
        names = (place.parent.name for place in sorted(self.folder.glob(f"*/*{SUFFIX}")))
        return [name for name in dict.fromkeys(names) if name not in (EXAMPLES, PREDICTIONS)]

    def lines(self, study: str) -> Iterator[str]:
        """Yield one line for each record: row, seed, score, commit, bytes."""
        for place in self._places(study):
            facts, size = _facts(place), place.stat().st_size
            scores = facts["student"]["result"]["scores"] if facts["student"] else {}
            told = next((f"{name} {value:.4f}" for name, value in scores.items()), facts["failure"] or "no score")
            yield f"{study} | {facts['row']} | {facts['seed']} | {told} | {facts['made'].get('commit', '')} | {size:,}"

    def _places(self, study: str) -> list[Path]:
        return sorted((self.folder / study).glob(f"*{SUFFIX}"))

    def _share(self, room: str, digest: str, value: Any) -> str:
        """Write what several records share once, and return its digest."""
        place = self.folder / room / f"{digest[:16]}{SUFFIX}"
        if not place.is_file():
            _write(place, {"digest": digest, room: value})
        return digest

    def _shared(self, room: str, digest: str, user: Path) -> Any:
        place = self.folder / room / f"{digest[:16]}{SUFFIX}"
        known, value = _shared_value(place, room, place.stat().st_mtime_ns) if place.is_file() else ("", None)
        if known != digest:
            raise UserError(f"{place}: is not there, or not what {user.name} was measured on; take the file anew")
        return value

    def _values(self, result: Result) -> dict[str, Any]:
        return {"result": json.loads(result.model_copy(update={"predictions": None}).to_json())}

    def _columns(self, result: Result) -> dict[str, list[Any]]:
        """Return the predictions by field, null where they equal the truth; the truths are written once."""
        kept = result.kept
        if kept is None:
            raise UserError(f"{result.name}: its predictions were not kept; measure it again")
        self._share(EXAMPLES, result.digest, {name: getattr(kept, name) for name in _of_examples()})
        answers = kind_of(result.task.kind).condensed(result.task, kept.answers, kept.gold)
        names = dict.fromkeys(name for answer in answers for name in answer)
        return {
            name: [
                None if name in gold and answer[name] == gold[name] else _short(answer[name])
                for answer, gold in zip(answers, kept.gold, strict=True)
            ]
            for name in names
        }

    def _result(self, facts: Mapping[str, Any] | None, place: Path) -> Result | None:
        if facts is None:
            return None
        result = Result.from_json(json.dumps(facts["result"]), str(place))
        examples = self._shared(EXAMPLES, result.digest, place)
        columns, gold = facts["answers"], examples["gold"]
        if isinstance(columns, str):
            columns = self._shared(PREDICTIONS, columns, place)
        answers = [
            {name: gold[number][name] if column[number] is None else column[number] for name, column in columns.items()}
            for number in range(len(gold))
        ]
        spec = result.task
        found = score(spec, answers, gold)[spec.metric]
        if not abs(found - result.score) <= CLOSE:
            raise UserError(f"{place}: {result.name} has a score of {result.score}, its predictions one of {found}")
        values = [float(value) for value in per_example(spec, answers, gold)]
        return result.model_copy(update={"kept": Kept(answers=answers, values=values, **examples)})


def _facts(place: Path) -> dict[str, Any]:
    try:
        facts: dict[str, Any] = parse_json(lzma.decompress(place.read_bytes()).decode("utf-8"))
    except (lzma.LZMAError, EOFError, ValueError) as error:
        raise UserError(
            f"{place}: cannot be read as a record ({error}); measure again, or take the file anew"
        ) from error
    return facts


@lru_cache(maxsize=64)
def _shared_value(place: Path, room: str, changed: int) -> tuple[str, Any]:
    """Return digest and value of what several records share, which is read once while the file stays as it is."""
    del changed
    facts = _facts(place)
    digest, value = str(facts.get("digest")), facts.get(room)
    return (digest_of(value) if room == PREDICTIONS else digest), value


def keep(name: str, values: Mapping[str, Any], folder: Path = RESULTS) -> dict[str, Any]:
    """Write ``NAME.json``: what a program measured, with command, commit, machine and versions; return all of it."""
    command = f"python -m {sys.modules['__main__'].__spec__.name}" if sys.modules["__main__"].__spec__ else ""
    facts = {"command": command, "commit": commit(), "machine": machine(), **without_paths(dict(values))}
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(folder / f"{name}.json", (json.dumps(facts, indent=1, ensure_ascii=False) + "\n").encode())
    return facts


def plain(name: str) -> str:
    """Return a name with only what may stand in the name of a file."""
    return "".join(c if c.isalnum() or c in " .+-_" else "-" for c in name)


def digest_of(value: Any) -> str:
    """Return the SHA-256 of plain JSON values, whatever the order of keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def commit() -> str:
    """Return the commit that runs, with a ``+`` if tracked code differs from it; empty outside of a repository."""
    code = ["benchmarks/*.py", "benchmarks/studies", "compress", "teachers", "eval"]
    try:
        name, changed = (
            subprocess.run(["git", *said], capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()
            for said in (["rev-parse", "--short=12", "HEAD"], ["diff", "--name-only", "HEAD", "--", *code])
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"{name}+" if changed else name


def _of_examples() -> list[str]:
    """Return the fields of ``Kept`` that are of the examples, not of a model."""
    return [one.name for one in fields(Kept) if one.name not in ("answers", "values", "logits")]


def _short(value: Any) -> Any:
    """Return a float with no more digits than float32 has."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _without_places(text: str) -> str:
    """Return a message in which no path says how the folders of this machine are called."""
    return _LOCAL.sub("…/", text)


def _write(place: Path, facts: Mapping[str, Any]) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(facts, ensure_ascii=False, separators=(",", ":"))
    atomic_write(place, lzma.compress(text.encode("utf-8", "backslashreplace"), preset=9 | lzma.PRESET_EXTREME))


def main() -> None:
    """Print what there is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("studies", nargs="*")
    archive = Archive()
    for study in parser.parse_args().studies or archive.studies():
        print(*archive.lines(study), sep="\n")


if __name__ == "__main__":
    main()
