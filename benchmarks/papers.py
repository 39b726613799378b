"""Each method's paper beside what was measured here: benchmarks/papers.yaml, and the records of the studies it names.

    python -m benchmarks.figures --write

A paper's figures are two scores, of the compressed model and of what it is held against, how many times smaller it is,
and its speedup, as its authors give them. Ours come from the record of one row. Papers compress 12 layers of 768 and
report the mean of many tasks; where we have one task and 6 layers of 384, the page says so and claims no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from benchmarks.archive import Archive
from benchmarks.markdown_table import markdown_table
from benchmarks.study import Outcome, Study, outcomes, retained, shown
from eval.result import Result

NAME = "papers"
HERE = Path(__file__).parent
LISTED = HERE / "papers.yaml"
COLUMNS = (
    *("method", "paper: on", "retained", "smaller", "speedup"),
    *("here: on", "retained [95%]", "smaller", "fewer MACs", "why they differ"),
)


@dataclass(frozen=True)
class Method:
    """One method as its paper and as our record has it.

    Attributes:
        method: Its name.
        source: Authors, year, arXiv id.
        on: What the paper compresses, and the task and metric.
        score: The paper's score of the compressed model, if it prints one.
        teacher: The paper's score of what it is held against.
        retained: What the paper says instead of two scores.
        smaller: How many times smaller the paper says it is, with what is counted; empty if it says nothing.
        speedup: With the device; empty if it says nothing.
        study: The study with our row; empty if there is none.
        row: Our row.
        here: What our row compresses.
        why: Why the two differ, or why there is no row of ours.
        export: Whether the numbers are those of the row's export.
    """

    method: str
    source: str
    on: str
    score: float = 0.0
    teacher: float = 1.0
    retained: str = ""
    smaller: str = ""
    speedup: str = ""
    study: str = ""
    row: str = ""
    here: str = ""
    why: str = ""
    export: bool = False


def methods(place: Path = LISTED) -> list[Method]:
    """Return the methods of the file, in its order.

    Raises:
        TypeError: An entry has a field that is not one of ``Method``, or lacks one.
    """
    return [Method(**values) for values in yaml.safe_load(place.read_text(encoding="utf-8"))]


def report(archive: Archive, place: Path = LISTED, studies: Path = HERE / "studies") -> str:
    """Return the table."""
    found: dict[str, dict[str, Outcome]] = {}
    rows = [list(COLUMNS)]
    for method in methods(place):
        if method.study and method.study not in found:
            found[method.study] = outcomes(Study.read(studies / f"{method.study}.yaml"), archive)
        outcome = found[method.study][method.row] if method.study else Outcome()
        rows.append([*_theirs(method), *_ours(method, outcome), method.why])
    return markdown_table(rows)


def _theirs(method: Method) -> Iterator[str]:
    yield f"{method.method} ({method.source})"
    yield method.on
    scores = method.score, method.teacher
    yield method.retained or f"{scores[0] / scores[1]:.1%} ({scores[0]:g} of {scores[1]:g})"
    yield method.smaller
    yield method.speedup


def _ours(method: Method, outcome: Outcome) -> Iterator[str]:
    share = retained(outcome, "export" if method.export else "student")
    results = outcome.exports if method.export else outcome.students
    if share is None or not results:
        yield from (f"{method.here}: not measured yet" if method.here else "not measured", "", "", "")
        return
    yield method.here
    yield shown(share)
    yield _times(results[0].shrinkage())
    yield _times(_fewer_macs(outcome.students[0]))


def _fewer_macs(student: Result) -> float | None:
    """Return how many times fewer multiply-accumulates than its reference a model needs."""
    reference = student.comparison.reference_size if student.comparison else None
    if student.size is None or reference is None or not student.size.macs or reference.macs is None:
        return None
    return reference.macs / student.size.macs


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
