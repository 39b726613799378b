"""Check that every table and figure of the documents follows from the data in benchmarks/results, or write them anew.

    python -m benchmarks.figures            # what does not follow; exit code 1 if there is anything
    python -m benchmarks.figures --write    # tables of docs/results, figures of README.md and choosing.md, a picture

Tables with figures stand in docs/results between ``<!-- study NAME -->`` and ``<!-- end -->``, and nowhere else.
Figures of README.md and docs/choosing.md are listed in docs/figures.yaml: for each document the sentence parts with
figures, with ``{}`` for each of them, and where each comes from. ``exempt`` lists numbers that claim nothing that was
measured, each with the reason.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any, Literal

import yaml

from benchmarks import (
    adapters,
    against_teacher,
    behaviour,
    generation,
    inference_report,
    last_layer,
    multitask,
    papers,
    pretrained,
    processes,
    readme_picture,
    rounds,
    searches,
    simulations,
    static_vectors,
    trainer_models,
    untrained_rounding,
    vector_index,
)
from benchmarks.archive import ROOT, Archive, Run
from benchmarks.results import DOCS, HERE, blocks, fill, write
from benchmarks.study import Outcome, Study, block, outcomes, retained
from eval.files.writing import atomic_write
from eval.measurement import pair
from eval.proof.paired_statistics import Interval
from eval.result import Result

LISTED = ROOT / "docs" / "figures.yaml"
REPORTS: Mapping[str, Callable[[Any], str]] = {
    adapters.NAME: adapters.report,
    **dict.fromkeys(against_teacher.NAMES, against_teacher.report),
    **dict.fromkeys(behaviour.NAMES, behaviour.report),
    "multitask": multitask.report,
    "pretrained": pretrained.report,
    "distillation-step": rounds.report,
    "kept-memory": rounds.report,
    "kept-shapes": rounds.report,
    "tinybert-step": rounds.report,
    "pretraining": rounds.report,
    trainer_models.NAME: trainer_models.section,
    searches.NAME: searches.report,
    last_layer.NAME: last_layer.report,
    untrained_rounding.NAME: untrained_rounding.report,
    generation.NAME: generation.report,
    processes.NAME: processes.report,
    static_vectors.NAME: static_vectors.report,
    static_vectors.WORDS: static_vectors.words_report,
    **dict.fromkeys(vector_index.NAMES.values(), vector_index.report),
}
"""Programs with a table of their own: from their file in benchmarks/results to its text."""
NUMBER = r"[+-]?\d[\d,]*(?:\.\d+)?"
WORDS = "half an?|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty"
CLAIM = re.compile(
    rf"(?<![\w.,])(?:{NUMBER}\s?(?:%|\u00d7|MB\b|ms\b)|(?:{NUMBER}|{WORDS})\s(?:points?|times)\b|0\.\d\d+)",
    re.IGNORECASE,
)
"""A number with a unit, or a score."""
CODE = re.compile(r"^```.*?^```|^    .*?$|`[^`\n]*`|\]\([^)]*\)|<!--.*?-->", re.MULTILINE | re.DOTALL)
QUANTITY = re.compile(
    r"(?P<export>export\.)?(?P<name>score|megabytes|speedup|smaller|retained|against (?P<base>.+?))"
    r"(?:\.(?P<end>low|high))?"
)
OF_A_RESULT: Mapping[str, Callable[[Result], float | None]] = {
    "score": lambda result: result.score,
    "megabytes": lambda result: result.bytes and result.bytes / 1e6,
    "speedup": Result.speedup,
    "smaller": Result.shrinkage,
}
"""Quantities of one result: its score, size, and how much faster and smaller than the reference it is."""
TABLE = re.compile(r"(?:^\|.*\n?)+", re.MULTILINE)


def expected(name: str, archive: Archive) -> str:
    """Return what must stand between the marks of a study or program."""
    file = archive.folder / f"{name}.json"
    if name == inference_report.NAME:
        return inference_report.sections(archive.folder)
    if name == papers.NAME:
        return papers.report(archive)
    report = REPORTS.get(name)
    if report is not None:
        made = f"*Being measured: `python -m benchmarks.{name.replace('-', '_')}`.*"
        return report(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else made
    study = Study.read(HERE / "studies" / f"{name}.yaml")
    return block(study, outcomes(study, archive))


def table_problems(page: Path, archive: Archive) -> list[str]:
    """Return what is wrong with the tables of a page of docs/results."""
    if page == simulations.PAGE:  # written whole
        known = json.loads(simulations.DATA.read_text(encoding="utf-8"))
        same = page.read_text(encoding="utf-8") == simulations.page(known)
        return [] if same else [f"{page.name}: is not what its data give; run python -m benchmarks.simulations"]
    problems = []
    for name, text in blocks(page).items():
        if text != expected(name, archive):
            problems.append(f"{page.name}: the table of {name} is not what its data give")
    text = re.sub(r"<!-- study \S+ -->.*?<!-- end -->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for table in TABLE.finditer(text):
        if _figures(table[0]):
            problems.append(f"{page.name}: the table {table[0].splitlines()[0]} has no data in benchmarks/results")
    return problems


def _figures(table: str) -> bool:
    """Return whether a table has figures: cells that begin with a number, or claims."""
    rows = [line for line in table.splitlines() if line.startswith("|")][2:]
    cells = (cell.strip(" *") for row in rows for cell in row.split("|"))
    return any(re.match(NUMBER, cell) or CLAIM.search(CODE.sub("", cell)) for cell in cells)


@dataclass(frozen=True)
class Part:
    """A part of a sentence with figures, or one that is exempt.

    Attributes:
        says: The text, with ``{}`` for each figure.
        figures: Where each comes from: ``STUDY | ROW | QUANTITY | FORMAT``.
    """

    says: str
    figures: tuple[str, ...] = ()

    def text(self, archive: Archive) -> str:
        """Return the text with its figures."""
        return self.says.format(*(figure(said, archive) for said in self.figures)) if self.figures else self.says

    def filled(self, document: str, archive: Archive) -> str:
        """Return a document in which the part has its figures."""
        text = self.text(archive)
        return self.pattern().sub(lambda _: text, document)

    def pattern(self, text: str | None = None) -> re.Pattern[str]:
        """Return what finds the part in a document, with any figures, or with the text given; lines may break."""
        words = (self.says if text is None else text).split()
        spaced = r"\s+".join(re.escape(word) for word in words)
        return re.compile(spaced.replace(r"\{\}", rf"{NUMBER}%?") if text is None and self.figures else spaced)


def listed() -> dict[str, list[Part]]:
    """Return document -> its parts with figures."""
    known = yaml.safe_load(LISTED.read_text(encoding="utf-8"))
    found = {}
    for document, entries in known.items():
        found[document] = [Part(entry["says"], tuple(entry["figures"])) for entry in entries.get("figures") or ()]
        found[document] += [Part(said) for said in entries.get("exempt") or {}]
    return found


def figure_problems(text: str, parts: list[Part], archive: Archive) -> list[str]:
    """Return what is wrong with the figures of a document: parts that are not there, claims that are in none."""
    problems, covered = [], []
    prose = CODE.sub(lambda code: " " * len(code[0]), text)
    for part in parts:
        try:
            wanted = part.text(archive)
        except ValueError as error:
            problems.append(f"{part.says!r}: {error}")
            continue
        places = list(part.pattern(wanted).finditer(text))
        covered += [place.span() for place in places]
        if not places:
            problems.append(f"{wanted!r} does not stand in the document")
    for claim in CLAIM.finditer(prose):
        if not any(start <= claim.start() and claim.end() <= end for start, end in covered):
            line = text[: claim.start()].count("\n") + 1
            problems.append(f"line {line}: {claim[0]!r} has no data; list it in docs/figures.yaml, or remove it")
    return problems


def figure(said: str, archive: Archive) -> str:
    """Return a figure as text.

    Raises:
        ValueError: There is no data for it, or it was measured on the examples that chose the model.
    """
    name, row, quantity, form = (part.strip() for part in said.split(" | "))
    study = Study.read(HERE / "studies" / f"{name}.yaml")
    found = outcomes(study, archive)
    if row not in found or not found[row].students:
        raise ValueError(f"{name} has no data of the row {row!r}")
    if any(getattr(result, "role", None) == "selection" for result in found[row].students):
        raise ValueError(f"{name}, {row}: measured on the examples that chose it, which shows nothing")
    return format(value_of(quantity, row, found), form)


def value_of(quantity: str, row: str, found: Mapping[str, Outcome]) -> float:
    """Return a quantity of a row: the mean over its seeds.

    Args:
        quantity: ``score``, ``megabytes``, ``retained`` of the student or, after ``export.``, of the export;
            ``retained.low`` and ``retained.high``; ``export.speedup`` and ``export.smaller`` against the reference;
            ``against ROW``, with ``.low`` and ``.high``.
        row: The row.
        found: All rows.

    Raises:
        ValueError: There is no such quantity, or the row lacks it.
    """
    words = QUANTITY.fullmatch(quantity)
    if words is None or (words["base"] and words["base"] not in found):
        raise ValueError(f"there is no quantity {quantity!r}; allowed: {QUANTITY.pattern}")
    outcome = found[row]
    side: Literal["student", "export"] = "export" if words["export"] else "student"
    interval: Interval | None = None
    if words["base"]:
        base = found[words["base"]].runs
        sides = [(run.student, base[seed].student) for seed, run in outcome.runs.items() if seed in base]
        both = [(one, other) for one, other in sides if one is not None and other is not None]
        if both:
            interval = pair([one for one, _ in both], [other for _, other in both]).difference
    elif words["name"] == "retained":
        interval = retained(outcome, side)
    if interval is not None:
        return float(getattr(interval, words["end"] or "value"))
    read = OF_A_RESULT.get(words["name"])
    results = outcome.exports if side == "export" else outcome.students
    values = [read(result) for result in results] if read is not None else []
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        raise ValueError(f"the row {row!r} has no {quantity}")
    return mean(known)


@dataclass(frozen=True)
class ReadOnce(Archive):
    """An archive that nothing is written to meanwhile, so that the records of a study are read once."""

    found: dict[str, dict[str, dict[int, Run]]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def load(self, study: str) -> dict[str, dict[int, Run]]:
        """Return the records of a study, as ``Archive.load`` does."""
        if study not in self.found:
            self.found[study] = super().load(study)
        return self.found[study]


def problems(archive: Archive) -> Iterator[str]:
    """Yield everything in the documents that does not follow from the data."""
    archive = ReadOnce(archive.folder)
    for page in sorted(DOCS.glob("*.md")):
        yield from table_problems(page, archive)
    yield from document_problems(archive)


def document_problems(archive: Archive) -> Iterator[str]:
    """Yield what does not follow from the data outside of the tables of docs/results: figures and pictures."""
    for document, parts in listed().items():
        text = (ROOT / document).read_text(encoding="utf-8")
        yield from (f"{document}: {problem}" for problem in figure_problems(text, parts, archive))
    yield from readme_picture.problems(archive.folder)
    yield from vector_index.problems(archive.folder)


def write_all(archive: Archive) -> None:
    """Write every table, and every listed figure that has data."""
    archive = ReadOnce(archive.folder)
    for page in sorted(DOCS.glob("*.md")):
        for name in blocks(page):
            if name == inference_report.NAME:
                inference_report.write(archive.folder, DOCS)
            elif (HERE / "studies" / f"{name}.yaml").is_file():
                write(Study.read(HERE / "studies" / f"{name}.yaml"), page, archive)
            else:
                fill(page, name, expected(name, archive))
    for document, parts in listed().items():
        text = (ROOT / document).read_text(encoding="utf-8")
        for part in (part for part in parts if part.figures):
            with suppress(ValueError):  # a figure without data stays
                text = part.filled(text, archive)
        atomic_write(ROOT / document, text.encode("utf-8"))
    readme_picture.write(archive.folder)
    vector_index.write(archive.folder)


def main() -> None:
    """Check or write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write tables and figures anew, then check")
    archive = Archive()
    if parser.parse_args().write:
        write_all(archive)
    found = list(problems(archive))
    print("\n".join(found) or "every table and figure follows from its data")
    raise SystemExit(1 if found else 0)


if __name__ == "__main__":
    main()
