"""The documents say what the data say: every table of docs/results, every figure of README and docs/choosing.md."""

import json
from dataclasses import replace

import pytest

from benchmarks import figures
from benchmarks.archive import RESULTS, Archive
from benchmarks.figures import (
    Part,
    ReadOnce,
    document_problems,
    figure_problems,
    listed,
    problems,
    table_problems,
    write_all,
)
from benchmarks.results import blocks
from benchmarks.searches import CERTIFICATES
from benchmarks.study import Study
from eval.certificate import recheck
from eval.measurement import pair
from tests.recipes.test_archive import run_of

PAGES = sorted(figures.DOCS.glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_every_table_of_a_page_follows_from_its_data(page):
    assert table_problems(page, ReadOnce(RESULTS)) == []


def test_every_figure_of_the_documents_follows_from_its_data():
    assert list(document_problems(ReadOnce(RESULTS))) == []


def test_tables_with_data_are_among_those_that_are_checked():
    text = blocks(figures.DOCS / "inference.md")["inference"]
    assert figures.expected("inference", Archive()) == text
    assert text.count("| best peer |") == len(list(RESULTS.glob("inference-*.json"))) > 1


@pytest.mark.parametrize("place", sorted(CERTIFICATES.glob("*.cert")), ids=lambda place: place.stem)
def test_a_certificate_that_is_kept_can_be_checked_again(place):
    assert recheck(place, level=1).word == "VALID"
    searches = json.loads((RESULTS / "searches.json").read_text())["searches"]
    pages = "".join(page.read_text(encoding="utf-8") for page in figures.DOCS.glob("*.md"))
    assert place.stem.rpartition("-")[0] in searches or place.name in pages


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A study of two rows, one of them with records, a page of docs/results and a document with a figure."""
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "s.yaml").write_text(
        "seeds: [1, 2]\nbaselines: []\nrecipe: {}\nrows: {a row: {}, other: {}}\n"
    )
    for name, place in {
        "HERE": tmp_path,
        "DOCS": tmp_path / "pages",
        "ROOT": tmp_path,
        "LISTED": tmp_path / "f.yaml",
    }.items():
        monkeypatch.setattr(figures, name, place)
    monkeypatch.setattr("benchmarks.results.DOCS", tmp_path / "pages")
    study = Study.read(tmp_path / "studies" / "s.yaml")
    archive = Archive(tmp_path / "results")
    for seed in study.seeds:
        archive.save("s", "a row", seed, replace(run_of(seed=seed), recipe=study.digests["a row"]))
    (tmp_path / "pages").mkdir()
    page = tmp_path / "pages" / "page.md"
    page.write_text("# A page\n\n<!-- study s -->\n\n| method | score |\n|---|---|\n| a row | 0.5 |\n\n<!-- end -->\n")
    (tmp_path / "f.yaml").write_text(
        'doc.md:\n  figures:\n    - says: "it scores {} with {} of the teacher"\n'
        '      figures: ["s | a row | score | .4f", "s | a row | export.retained | .1%"]\n'
        '  exempt: {"15% of tokens": of a paper}\n'
    )
    (tmp_path / "doc.md").write_text(
        "It masks 15% of tokens and `0.77`;\nit scores 0.1234 with\n99.9% of the teacher.\n"
    )
    return archive, page, tmp_path / "doc.md"


def test_what_does_not_follow_is_told_and_written_anew(made):
    archive, page, document = made
    found = list(problems(archive))
    assert found[0] == "page.md: the table of s is not what its data give"
    assert any("does not stand in the document" in problem for problem in found)
    write_all(archive)
    assert list(problems(archive)) == []
    runs = archive.load("s")["a row"].values()
    score = sum(run.student.score for run in runs) / 2
    export = pair([run.export for run in runs], [run.reference for run in runs]).retention
    assert document.read_text().split() == (
        f"It masks 15% of tokens and `0.77`; it scores {score:.4f} with {export.value:.1%} of the teacher.".split()
    )
    assert "\n\nNot measured yet: *other*.\n" in page.read_text()
    assert f"{score:.4f} ± " in page.read_text()


def test_no_table_stands_without_data(made, tmp_path):
    archive, page, _ = made
    empty, table = Archive(tmp_path / "empty"), "| a | b |\n|---|---|\n| x | 0.5 |\n"
    assert table_problems(page, empty) == ["page.md: the table of s is not what its data give"]
    write_all(empty)
    assert "*2 rows, not measured yet: `benchmarks/studies/s.yaml`.*" in page.read_text()
    assert table_problems(page, empty) == []
    assert table_problems(page, archive) == ["page.md: the table of s is not what its data give"], "the line goes"
    page.write_text(f"{table}\n\n| recipe | `1.yaml` |\n|---|---|\n| words | alone |\n")
    assert table_problems(page, empty) == ["page.md: the table | a | b | has no data in benchmarks/results"]


def test_a_claim_that_is_not_listed_is_found():
    text = (
        "A model 16.6 \u00d7 smaller keeps\n97% at 5.5 MB, two points less; "
        "`rate: 0.25`, 3 epochs, 12 layers, version 2.13.0.\n"
    )
    found = figure_problems(text, [Part("97% at")], Archive())
    assert [problem.split(" has no data")[0] for problem in found] == [
        "line 1: '16.6 \u00d7'",
        "line 2: '5.5 MB'",
        "line 2: 'two points'",
    ]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("s | nothing | score | .4f", "has no data of the row 'nothing'"),
        ("s | other | score | .4f", "has no data of the row 'other'"),
        ("s | a row | speed | .4f", "there is no quantity 'speed'"),
        ("s | a row | export.speedup | .1f", "has no export.speedup"),
        ("s | a row | against other | .4f", "has no against other"),
    ],
)
def test_a_figure_without_data_is_told(made, said, told):
    (problem,) = figure_problems("x", [Part("{}", (said,))], made[0])
    assert told in problem


def test_the_documents_that_make_claims_are_checked():
    assert set(listed()) == {"README.md", "docs/choosing.md"}
