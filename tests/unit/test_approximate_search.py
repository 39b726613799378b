"""Approximate search in an index of vectors: close to exact search, measured beside it, refused without its library."""

import json
import sys

import numpy as np
import pytest
from pydantic import ValidationError

from compress.cli import main
from compress.recipe.checks import index_problems
from eval import UserError, measure
from eval.ranking.best import largest, unit
from eval.ranking.index_fields import Approximation
from eval.ranking.indexed import Indexed
from eval.ranking.neighbour_graph import NeighbourGraph
from eval.ranking.vector_index import IndexForm, VectorIndex
from eval.report.console import to_text
from eval.report.page import page
from teachers.taskmodel import save_taskmodel
from tests.recipes.test_recipes import write_data
from tests.tiny import tiny_spec, tiny_task, tiny_taskmodel

CHANCE = np.random.default_rng(7)
DOCUMENTS = unit(CHANCE.normal(size=(3000, 64)))
QUERIES = unit(DOCUMENTS[:40] + 0.1 * CHANCE.normal(size=(40, 64)))


@pytest.fixture
def library():
    pytest.importorskip("usearch", reason="usearch is not installed: the extra approximate")


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("vectors", ["float32", "int8"])
def test_it_finds_nearly_what_exact_search_finds_and_ranks_it_by_products(vectors):
    runs = []
    for parts in (1, 1, 5):
        index = VectorIndex(IndexForm(vectors=vectors, approximate=True))
        for part in np.array_split(DOCUMENTS, parts):
            index.add(part)
        runs.append((index, *index.search(QUERIES, 10)))
    index, places, scores = runs[0]
    exact, known = index.search(QUERIES, 10, exact=True)
    plain = VectorIndex(IndexForm(vectors=vectors))
    plain.add(DOCUMENTS)
    assert [row.tolist() for row in exact] == [row.tolist() for row in plain.search(QUERIES, 10)[0]]
    shared = [len({*found.tolist()} & {*wanted.tolist()}) / 10 for found, wanted in zip(places, exact, strict=True)]
    assert np.mean(shared) > 0.98
    for found, given, wanted, best in zip(places, scores, exact, known, strict=True):
        same = np.isin(found, wanted)
        assert given[same] == pytest.approx([best[wanted.tolist().index(at)] for at in found[same]], abs=1e-6)
        assert given.tolist() == sorted(given, reverse=True)
    for _, again, _ in runs[1:]:
        assert [row.tolist() for row in again] == [row.tolist() for row in places]
    assert index.bytes == pytest.approx(index.form.bytes_of(3000, 64), rel=0.02)


@pytest.mark.usefixtures("library")
def test_fewer_candidates_find_less():
    shares = []
    for candidates in (10, 400):
        index = VectorIndex(IndexForm(approximate=True, candidates=candidates))
        index.add(CHANCE.normal(size=(3000, 200)))
        asked = CHANCE.normal(size=(40, 200))
        pairs = zip(index.search(asked, 10)[0], index.search(asked, 10, exact=True)[0], strict=True)
        shares.append(np.mean([len({*found.tolist()} & {*wanted.tolist()}) / 10 for found, wanted in pairs]))
    assert shares[0] < shares[1]


@pytest.mark.usefixtures("library")
def test_few_documents_and_none():
    index = VectorIndex(IndexForm(approximate=True))
    index.add(DOCUMENTS[:3])
    places, scores = index.search(QUERIES[:2], 10)
    for row, found in enumerate(places):
        assert found.tolist() == largest(QUERIES[row] @ DOCUMENTS[:3].T, 3).tolist()
    assert [len(row) for row in scores] == [3, 3]
    assert NeighbourGraph("int8", 4, 10).near(np.zeros((2, 4), dtype=np.int8), 5)[1].tolist() == []


@pytest.mark.usefixtures("library")
def test_a_report_has_its_score_beside_that_of_exact_search_and_what_it_finds():
    task = tiny_task("retrieval", examples=12)
    model = tiny_taskmodel("bert", task.spec)
    exact = measure(Indexed(model, IndexForm(vectors="int8")), task)
    found = measure(Indexed(model, IndexForm(vectors="int8", approximate=True)), task, against=model)
    assert found.name == f"{model.name}, index int8, 400 found by approximate search"
    assert found.approximation == Approximation(top_10=1.0, exact=exact.scores["ndcg@10"])
    assert exact.approximation is None
    assert "approximation" not in exact.model_dump(mode="json")
    assert found.index.bytes == exact.index.bytes + 148 * exact.index.documents
    said = "approximate search finds 100.0% of the ten documents that exact search ranks first; ndcg@10"
    assert said in " ".join(to_text([found]).split())
    assert said in page("films", [found])
    assert "approximate" not in to_text([exact])


@pytest.mark.usefixtures("library")
def test_eval_measures_it_for_a_model(tmp_path, capsys):
    write_data(tiny_task("retrieval", examples=8), tmp_path / "data")
    (tmp_path / "model").mkdir()
    save_taskmodel(tiny_taskmodel("bert", tiny_spec("retrieval")), tmp_path / "model")
    asked = ["--data", str(tmp_path / "data"), "--no-latency", "--json", "-", "--index", "approximate: true"]
    assert main(["eval", str(tmp_path / "model"), *asked]) == 0
    plain, indexed = json.loads(capsys.readouterr().out)
    assert indexed["approximation"] == {"top_10": 1.0, "exact": plain["scores"]["ndcg@10"]}


def test_it_is_refused_by_name_without_its_library(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "usearch", None)
    said = "approximate search needs the library usearch; run: pip install 'nlp-compress[approximate]'"
    form = IndexForm(approximate=True)
    assert [*index_problems("retrieval", [form])] == [said]
    assert not [*index_problems("retrieval", [IndexForm()])]
    with pytest.raises(UserError) as caught:
        VectorIndex(form).add(DOCUMENTS)
    assert caught.value.problems == (said,)
    text = "task: {kind: retrieval, data: films}\nteacher: {model: films}\nevaluate: {index: [{approximate: true}]}\n"
    (tmp_path / "recipe.yaml").write_text(text, encoding="utf-8")
    assert main(["check", str(tmp_path / "recipe.yaml")]) == 2
    assert f"evaluate.index: {said}" in capsys.readouterr().err


def test_signs_have_no_graph_and_a_certificate_no_approximate_search(tmp_path, capsys):
    with pytest.raises(ValidationError, match="approximate: a graph holds float32 or int8 vectors, not binary"):
        IndexForm(vectors="binary", approximate=True)
    with pytest.raises(ValidationError, match="candidates: nothing ranks them again"):
        IndexForm(vectors="int8", candidates=10)
    asked = ["certify", str(tmp_path), "--out", str(tmp_path / "a.cert"), "--index", "approximate: true"]
    assert main(asked) == 2
    assert "--index: a certificate speaks of exact search" in capsys.readouterr().err


def test_other_forms_are_written_as_before():
    assert "approximate" not in IndexForm(vectors="int8").model_dump(mode="json")
