"""Rankings of documents: metrics against hand-computed numbers and ranx, exact search, folders of BEIR."""

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from compress.cli import main
from compress.engine.model_memory import with_memory
from compress.export import Runtime, export_onnx
from compress.export.check.gate import compare
from compress.export.check.verification import verify
from compress.export.targets.library import ExportError
from compress.prediction import of_model
from eval import UserError, load_task, measure
from eval.encoding import TextEncoder
from eval.inference import predict
from eval.metrics.ranked_lists import PER_QUERY
from eval.ranking.best import Best, largest
from eval.ranking.document_set import Corpus
from eval.ranking.first_stage import _index, candidates
from eval.ranking.indexed import Documents, Indexed, indexed
from eval.ranking.vector_index import IndexForm
from eval.report.changed import _text
from teachers.taskmodel import save_taskmodel
from tests.tiny import tiny_spec, tiny_task, tiny_taskmodel


def test_metrics_of_a_ranking_by_hand():
    found = {name: score(["a", "b", "c"], {"b": 1, "z": 1}) for name, score in PER_QUERY.items()}
    gain = 1 / np.log2(3)
    assert found == pytest.approx(
        {"ndcg@10": gain / (1 + gain), "mrr@10": 0.5, "recall@10": 0.5, "recall@100": 0.5, "map@100": 0.25}
    )


def test_the_first_stage_leaves_the_gpu_to_torch(tmp_path):
    """bm25s imports JAX, where it is installed; it may not take most of a GPU for itself."""
    pytest.importorskip("bm25s", reason="bm25s is not installed: the extra retrieval")
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text(
        "import os\nprint('jax', os.environ['XLA_PYTHON_CLIENT_PREALLOCATE'])\nraise ImportError\n"
    )
    program = (
        "from eval.ranking.document_set import Corpus\n"
        "from eval.ranking.first_stage import candidates\n"
        "print(candidates(Corpus(('a', 'b'), ('one word', 'two words')), [('q', 'words')], 5))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    environment.pop("XLA_PYTHON_CLIENT_PREALLOCATE", None)
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["jax false", "[('b',)]"]


def test_chunks_of_documents_make_no_difference():
    scores = np.random.default_rng(0).integers(0, 20, (5, 200)) / 20
    best = Best(5, 30)
    for first in range(0, 200, 7):
        best.add(scores[:, first : first + 7])
    for row, places in enumerate(best.places):
        assert (
            places.tolist()
            == largest(scores[row], 30).tolist()
            == np.argsort(-scores[row], kind="stable")[:30].tolist()
        )


@pytest.mark.parametrize("kind", ["retrieval", "reranking"])
def test_a_model_is_measured_and_compared_by_query(kind):
    task = tiny_task(kind, examples=12)
    one, other = (tiny_taskmodel("bert", task.spec, seed=seed) for seed in (0, 1))
    result = measure(one, task, against=other)
    assert len(result.kept.values) == 12
    assert result.scores["ndcg@10"] == pytest.approx(np.mean(result.kept.values))
    assert 0 <= result.comparison.agreement["top_10"] < 1


def test_queries_and_documents_have_their_own_prompts(tmp_path):
    prompts = {"query_prompt": "the good ", "document_prompt": "a film "}
    task = tiny_task("retrieval", examples=8)
    plain = tiny_taskmodel("bert", task.spec)
    prompted = replace(plain, task=task.spec.model_copy(update=prompts))

    def ids(model, *examples):
        return [feature.ids for feature in model.encoder.encode(examples)]

    query, document = task.test[0], {"text": task.test[0]["corpus"].texts[0]}
    read = [{"text": prompts["query_prompt"] + query["text"]}, {"text": prompts["document_prompt"] + document["text"]}]
    assert ids(prompted, query, document) == ids(plain, *read)
    pair = {"text_a": query["text"], "text_b": document["text"]}
    assert ids(prompted, pair) == ids(plain, *read), "as what learns from pairs reads them"
    assert ids(prompted, prompted.encoder.kind.plain(query)) == ids(plain, read[0])
    export_onnx(prompted, tmp_path / "onnx", examples=task.test)
    runtime = Runtime(tmp_path / "onnx")
    assert (runtime.encoder.settings.query_prompt, runtime.task["document_prompt"]) == tuple(prompts.values())
    expected, found = (measure(model, task).scores for model in (prompted, runtime))
    assert found == pytest.approx(expected)
    assert measure(plain, task).kept != measure(prompted, task).kept
    assert not [problem for found in verify(tmp_path / "onnx") if found.ran for problem in found.problems]
    text = "which film"
    vectors = {
        name: predict(plain, [{"text": before + text}]).logits
        for name, before in (("query", prompts["query_prompt"]), ("document", prompts["document_prompt"]))
    }
    np.testing.assert_allclose(runtime.predict([text]).logits, vectors["document"], atol=1e-5)
    for name, vector in vectors.items():
        asked = Runtime(tmp_path / "onnx", prompt_name=name)
        np.testing.assert_allclose(asked.predict([text]).logits, vector, atol=1e-5)
        np.testing.assert_allclose(predict(asked, [{"text": text}]).logits, vector, atol=1e-5)
        for example in ({"text": text}, pair):
            answers = [json.loads(line) for line in of_model(prompted, [example], prompt_name=name)]
            np.testing.assert_allclose(answers[0]["vectors"], asked.predict([example]).logits[0], atol=1e-5)
        given = [json.dumps({"text": text, "prompt_name": name})]
        np.testing.assert_allclose(runtime.predict(given).logits, vector, atol=1e-5)
        program = [sys.executable, str(tmp_path / "onnx" / "predict.py"), "--prompt-name", name, text]
        ran = subprocess.run(program, capture_output=True, text=True, check=True)
        np.testing.assert_allclose(json.loads(ran.stdout)["vectors"], vector[0], atol=1e-5)
    with pytest.raises(ExportError, match="prompt_name: got 'passage', must be query or document"):
        runtime.predict([{"text": text, "prompt_name": "passage"}])


def write(folder, corpus, queries, qrels):
    (folder / "qrels").mkdir()
    for name, rows in (("corpus", corpus), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(f"{row}\n" for row in qrels))


def test_all_that_is_wrong_with_a_folder_is_told_at_once(tmp_path):
    documents = [{"_id": name, "text": "a film"} for name in ("d", "d")]
    write(tmp_path, documents, [{"_id": "q", "text": "which?"}], ["q\td\t1", "q\tx\t1", "p\td\t1", "q\td"])
    with pytest.raises(UserError) as caught:
        load_task("retrieval", tmp_path)
    said = "\n".join(caught.value.problems)
    for part in (
        "1 id given twice, such as 'd'",
        "corpus.jsonl lacks, such as 'x'",
        "queries.jsonl lacks, such as 'p'",
    ):
        assert part in said
    assert "test.tsv:5: expected query-id, corpus-id and a number" in said


def test_a_folder_of_documents_names_its_kind_of_task(tmp_path):
    write(tmp_path, [{"_id": "d", "text": "a film"}], [{"_id": "q", "text": "which?"}], ["q\td\t1"])
    with pytest.raises(UserError, match="read with kind: retrieval, or of a reranker kind: reranking"):
        load_task("embedding", tmp_path)


def test_fields_of_other_names_are_named(tmp_path):
    write(tmp_path, [{"id": "d", "contents": "a film"}], [{"_id": "q", "text": "which?"}], ["q\td\t1"])
    with pytest.raises(UserError, match=r"corpus.jsonl:1: lacks '_id' and 'text'; there are 'id', 'contents'; rename"):
        load_task("retrieval", tmp_path)


def test_a_folder_is_read_with_titles_and_without_queries_that_have_no_document(tmp_path):
    documents = [{"_id": "d", "title": "Films", "text": "a warm film"}]
    write(tmp_path, documents, [{"_id": "q", "text": "which?"}, {"_id": "r", "text": "none"}], ["q\td\t1"])
    (example,) = load_task("retrieval", tmp_path).test
    assert (example["id"], example["relevant"], example["corpus"].texts) == ("q", {"d": 1}, ("Films a warm film",))


@pytest.mark.slow  # numba compiles for minutes
@pytest.mark.filterwarnings("ignore::Warning")  # of numba about ranx's own code
def test_metrics_are_those_of_ranx():
    ranx = pytest.importorskip("ranx", reason="ranx is not installed: pip install ranx")
    chance, runs, qrels = random.Random(3), {}, {}
    for query in map(str, range(8)):
        names = chance.sample([f"d{number}" for number in range(150)], 100)
        runs[query] = {name: 1 - place / 200 for place, name in enumerate(names)}
        qrels[query] = {f"d{number}": chance.choice((1, 2)) for number in chance.sample(range(150), 6)}
    theirs = ranx.evaluate(ranx.Qrels(qrels), ranx.Run(runs), list(PER_QUERY))
    ours = {name: np.mean([score([*runs[q]], qrels[q]) for q in runs]) for name, score in PER_QUERY.items()}
    assert ours == pytest.approx(theirs)


def test_a_model_is_measured_with_an_index_against_itself_without_one():
    task = tiny_task("retrieval", examples=12)
    model = tiny_taskmodel("bert", task.spec)
    exact = IndexForm(vectors="binary", rescore="float32", candidates=len(task.test[0]["corpus"].texts))
    same = measure(Indexed(model, exact), task, against=model)
    assert same.kept.values == measure(model, task).kept.values
    assert same.comparison.agreement["top_10"] == 1
    signs = measure(Indexed(model, IndexForm(vectors="binary", dimensions=8)), task, against=model)
    assert (signs.name, len(signs.kept.values)) == (f"{model.name}, index binary 8", 12)
    assert signs.comparison.reference == model.name
    assert signs.comparison.agreement["top_10"] < 1
    assert signs.kept.values != same.kept.values
    (again,) = with_memory([signs], {signs.name: Indexed(model, IndexForm(vectors="int8"))}, task.test)
    assert (again.memory, again.no_memory) == (None, None), "it has the memory of the model without an index"


DOCUMENTS = Corpus(["a", "b", "c"], ["a warm film of Paris", "a dull film", "the weather"])


def test_the_first_stage_finds_documents_by_rare_words():
    pytest.importorskip("bm25s", reason="bm25s is not installed: the extra retrieval")
    assert candidates(DOCUMENTS, [("q", "a film of Paris"), ("r", "snow")], 10) == [("a", "b"), ()]


def test_the_first_stage_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "bm25s", None)
    _index.cache_clear()
    with pytest.raises(UserError, match=r"pip install 'nlp-compress\[retrieval\]'"):
        candidates(DOCUMENTS, [("q", "a film")], 10)


@pytest.mark.parametrize("told", [["--task", "retrieval"], []])
def test_an_embedder_is_measured_by_what_it_finds(tmp_path, capsys, told):
    documents = [{"_id": "d", "text": "a warm film"}, {"_id": "e", "text": "a dull room"}]
    (tmp_path / "data").mkdir()
    write(tmp_path / "data", documents, [{"_id": "q", "text": "a warm film"}], ["q\td\t1"])
    (tmp_path / "model").mkdir()
    save_taskmodel(tiny_taskmodel("bert", tiny_spec("embedding")), tmp_path / "model")
    asked = ["--data", str(tmp_path / "data"), *told, "--no-latency", "--json", "-"]
    assert main(["eval", str(tmp_path / "model"), *asked]) == 0
    assert json.loads(capsys.readouterr().out)[0]["scores"]["ndcg@10"] == 1  # the document is the query's own text


def test_a_report_quotes_the_query_of_a_reranker():
    (example, *_) = tiny_task("reranking", examples=2).test
    assert _text(tiny_spec("reranking"), example).text == example["text"]


def test_documents_are_read_once_for_all_forms_as_far_as_their_vectors_may_be_held(monkeypatch):
    task = tiny_task("retrieval", examples=10)
    model, corpus = tiny_taskmodel("bert", task.spec), task.test[0]["corpus"]
    asked = []

    def counts(encoder, examples, known=TextEncoder.encode):
        asked.append(len(examples))
        return known(encoder, examples)

    monkeypatch.setattr(TextEncoder, "encode", counts)
    forms = [IndexForm(vectors="int8"), IndexForm(vectors="binary")]
    found = [measure(one, task, split="test") for one in indexed([model], forms)]
    assert asked.count(len(corpus.texts)) == 1
    anew = [measure(Indexed(model, form), task, split="test") for form in forms]
    assert asked.count(len(corpus.texts)) == 3
    assert [one.kept.answers for one in found] == [one.kept.answers for one in anew]
    texts = [{"text": text} for text in corpus.texts[:2]]
    little = Documents(most=2 * 32 * 4)

    def read(several):
        return predict(model, several).logits

    assert little.vectors(texts, read) is little.vectors(texts, read)
    other = [{"text": text} for text in corpus.texts[2:4]]
    assert little.vectors(other, read) is not little.vectors(other, read)


def test_of_a_reranker_the_gate_compares_the_order_of_documents():
    queries = list(tiny_task("reranking").test)
    model = tiny_taskmodel("bert", tiny_spec("reranking"))
    turned = SimpleNamespace(name="turned", encoder=model.encoder, forward=lambda inputs: -model.forward(inputs))
    same = compare(model, model, queries, tolerance=None, agreement=0.9)
    assert (same.agreement, same.problems) == (1.0, ())
    other = compare(turned, model, queries, tolerance=None, agreement=0.9)
    assert {len(query["candidates"]) for query in queries} == {15}
    assert other.agreement == 0.5, "of fifteen documents, the ten best and the ten worst have five in common"
    assert other.problems[-1].startswith("50.00% of the predictions on")
