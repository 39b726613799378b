"""An embedder for search learns from pairs: each query with its documents, and with others that BM25 finds."""

import pytest

from compress.distill.contrastive import ContrastiveDistillation
from compress.distill.embedding import EmbeddingDistillation
from compress.distill.margin_mse import MarginDistillation
from compress.engine.steps import run
from compress.recipe import Recipe
from compress.registry import get
from compress.technique import Inputs
from eval.errors import UserError
from eval.kinds.kind_registry import kind_of
from eval.task import Examples
from teachers.signals.model_teacher import ModelTeacher
from teachers.taskmodel import save_taskmodel
from teachers.training.config import Training
from teachers.training.scoring import scores
from tests.tiny import tiny_task, tiny_taskmodel

TASK = tiny_task("retrieval", examples=20)
QUERIES = Examples([example for example in TASK.train if "corpus" in example], "train")


@pytest.fixture
def cross_encoder(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))
    (tmp_path / "cross-encoder").mkdir()
    model = tiny_taskmodel("bert", tiny_task("reranking").spec, seed=2, initializer_range=0.3)
    save_taskmodel(model, tmp_path / "cross-encoder")
    return str(tmp_path / "cross-encoder")


def trained(step, tmp_path, seed=1):
    teacher = ModelTeacher(tiny_taskmodel("bert", TASK.spec, seed=seed), cache=tmp_path / "signals")
    return run(
        Recipe(steps=(step,)),
        tiny_taskmodel("bert", TASK.spec),
        Inputs(train=TASK.train, teacher=teacher),
        dry_run_first=False,
    )


def test_relevant_documents_stand_before_those_that_bm25_finds():
    pytest.importorskip("bm25s")
    query = QUERIES[0]
    found = [pair for pair in kind_of("retrieval").query_pairs(TASK.spec, TASK.train) if pair["group"] == query["id"]]
    (right,) = query["relevant"]
    assert [pair["label"] for pair in found] == [1.0] + [0.0] * 4
    assert found[0]["text_b"] == query["corpus"].text_of(right)
    person, place = right.split("-")
    for pair in found:
        assert pair["text_a"] == query["text"]
        assert person in pair["text_b"] or place in pair["text_b"]
    assert kind_of("retrieval").text_pairs([query]) == found[:1]
    fewer = kind_of("retrieval").query_pairs(TASK.spec.model_copy(update={"negatives": 2}), [query])
    assert fewer == found[:3]


def test_contrastive_distillation_learns_to_find_the_documents_of_queries(tmp_path):
    step = ContrastiveDistillation(alpha=0.0, negatives=1, epochs=20, batch_size=16, learning_rate=3e-3)
    result = trained(step, tmp_path)
    before, after = (scores(model, QUERIES)["ndcg@10"] for model in (tiny_taskmodel("bert", TASK.spec), result))
    assert after > before + 0.1
    assert result.lineage[-1].facts["history"][-1]["terms"].keys() == {"infonce"}


@pytest.mark.parametrize("name", ["distill.margin_mse", "distill.listwise"])
def test_a_cross_encoders_scores_are_learned_over_the_documents_of_each_query(name, cross_encoder, tmp_path):
    pytest.importorskip("bm25s")
    step = get(name)(cross_encoder=cross_encoder, epochs=8, batch_size=40, learning_rate=1e-3)
    terms = [entry["terms"] for entry in trained(step, tmp_path).lineage[-1].facts["history"]]
    (term,) = terms[0]
    assert 0 < terms[-1][term] < terms[0][term]


def test_pairs_are_examples_beside_the_texts_for_the_terms_of_one_objective(tmp_path):
    block = get("distill.combined")(
        objective={"distill.contrastive": {}, "distill.embedding": {"similarity": 1.0}},
        training=Training(epochs=1, batch_size=8),
    ).objective
    made = block.make(Inputs(train=TASK.train, teacher=ModelTeacher(tiny_taskmodel("bert", TASK.spec))))
    learned = made.select(TASK.spec, TASK.train)
    assert list(learned[: len(TASK.train)]) == list(TASK.train)
    pairs = {(pair["text_a"], pair["text_b"]) for pair in kind_of("retrieval").text_pairs(TASK.train)}
    assert sorted((pair["text_a"], pair["text_b"]) for pair in learned[len(TASK.train) :]) == sorted(pairs)
    step = get("distill.combined")(objective=block, training=Training(epochs=2, batch_size=8))
    terms = trained(step, tmp_path).lineage[-1].facts["history"][-1]["terms"]
    assert terms["distill.contrastive.infonce"] > 0
    assert terms["distill.embedding.mse"] > 0


def test_one_objective_alone_learns_from_texts_or_from_pairs():
    texts = EmbeddingDistillation().select(TASK.spec, TASK.train)
    pairs = ContrastiveDistillation().select(TASK.spec, TASK.train)
    assert texts is TASK.train
    assert len(pairs) == len(QUERIES)


def test_documents_without_judged_queries_are_refused_by_name(cross_encoder, tmp_path):
    texts = Examples([example for example in TASK.train if "corpus" not in example], "train")
    model = tiny_taskmodel("bert", TASK.spec)
    inputs = Inputs(train=texts, teacher=ModelTeacher(model, cache=tmp_path))
    for step in (ContrastiveDistillation(), MarginDistillation(cross_encoder=cross_encoder)):
        with pytest.raises(UserError, match=r"qrels/train\.tsv"):
            run(Recipe(steps=(step,)), model, inputs)
