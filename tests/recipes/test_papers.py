"""The page that holds each method's paper beside our record."""

from dataclasses import replace

import pytest

from benchmarks.archive import Archive
from benchmarks.papers import methods, report
from benchmarks.study import Study
from tests.recipes.test_archive import run_of

PAPER = "- {method: M, source: 'A 2020', 'on': a task, score: 80, teacher: 82, study: s, row: a row, here: ours}\n"


@pytest.fixture
def place(tmp_path):
    (tmp_path / "s.yaml").write_text("seeds: [1]\nbaselines: []\nrecipe: {}\nrows: {a row: {}}\n")
    (tmp_path / "papers.yaml").write_text(PAPER)
    return tmp_path


def test_a_paper_stands_beside_the_record_of_its_row(place):
    archive = Archive(place / "results")
    assert "97.6% (80 of 82) |  |  | ours: not measured yet |" in report(archive, place / "papers.yaml", place)
    run = replace(run_of(seed=1), recipe=Study.read(place / "s.yaml").digests["a row"])
    archive.save("s", "a row", 1, run)
    share = run.student.score / run.reference.score
    assert f"| ours | {share:.1%} [" in report(archive, place / "papers.yaml", place)


def test_what_a_paper_says_in_words_and_a_method_without_a_row_are_told(place):
    (place / "papers.yaml").write_text("- {method: M, source: 'A 2020', 'on': t, kept: no loss, why: w}\n")
    line = report(Archive(place / "results"), place / "papers.yaml", place).splitlines()[2]
    assert line == "| M (A 2020) | t | no loss |  |  | not measured |  |  |  | w |"


def test_every_method_is_listed_once_and_has_figures_or_words():
    found = methods()
    assert len({method.method for method in found}) == len(found)
    assert all(method.kept or (method.score < 2 * method.teacher and method.score > 1) for method in found)
    assert all(method.why and method.source for method in found)
