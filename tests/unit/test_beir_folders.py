"""Folders of BEIR that are wrong, or odd: each is refused with what to do, or counted; a huge document costs little."""

import logging
import time

import pytest

from compress.cli import main
from eval import UserError, load_task, measure
from eval.certificate.overlap import overlap_of
from eval.kinds.kind_registry import kind_of
from tests.tiny import tiny_taskmodel
from tests.unit.test_retrieval import write

FILMS = [{"_id": "d", "text": "a warm film"}, {"_id": "e", "text": "a dull film"}]
ASKED = [{"_id": "q", "text": "which is warm?"}, {"_id": "r", "text": "which is dull?"}]
RIGHT = ["q\td\t1", "r\te\t1"]


def refused(folder, corpus=FILMS, queries=ASKED, qrels=RIGHT):
    write(folder, corpus, queries, qrels)
    with pytest.raises(UserError) as caught:
        load_task("retrieval", folder)
    return caught.value.problems


def counted(folder, caplog, corpus=FILMS, queries=ASKED, qrels=RIGHT):
    write(folder, corpus, queries, qrels)
    with caplog.at_level(logging.INFO, logger="eval.data.beir"):
        task = load_task("retrieval", folder)
    return task, [record.getMessage() for record in caplog.records]


def test_an_empty_corpus_is_refused_and_so_is_what_names_its_documents(tmp_path):
    found = refused(tmp_path, corpus=[])
    assert found == (
        f"{tmp_path / 'corpus.jsonl'}: is empty; put one JSON object with '_id' and 'text' a line into it",
        f"{tmp_path / 'qrels' / 'test.tsv'}: 2 lines with an id that corpus.jsonl lacks, such as 'd', 'e'",
    )


def test_no_queries_at_all_are_refused(tmp_path):
    assert refused(tmp_path, queries=[])[0].startswith(f"{tmp_path / 'queries.jsonl'}: is empty; put one JSON object")


@pytest.mark.parametrize(
    ("qrels", "said"),
    [([], "has no judgements; expected query-id"), (["q\td\t0", "r\te\t-1"], "names no relevant document; a document")],
)
def test_a_split_in_which_nothing_is_relevant_is_refused(qrels, said, tmp_path):
    (found,) = refused(tmp_path, qrels=qrels)
    assert found.startswith(f"{tmp_path / 'qrels' / 'test.tsv'}: {said}")


def test_texts_that_are_all_empty_are_refused(tmp_path):
    nothing = [{"_id": film["_id"], "text": " "} for film in FILMS]
    (found,) = refused(tmp_path, corpus=nothing)
    assert found == f"{tmp_path / 'corpus.jsonl'}: all 2 documents have an empty 'text'; put their texts there"


def test_headings_are_a_line_of_three_and_other_layouts_are_refused_whole(tmp_path):
    write(tmp_path, FILMS, ASKED, [])
    (tmp_path / "qrels" / "test.tsv").write_text("q 0 d 1\nr 0 e 1\n", encoding="utf-8")
    with pytest.raises(UserError) as caught:
        load_task("retrieval", tmp_path)
    assert [problem.rpartition(", not ")[2] for problem in caught.value.problems] == ["'q 0 d 1'", "'r 0 e 1'"]


@pytest.mark.parametrize(("query", "found"), [("", []), ("?", []), ("dull " * 1_000_000, ["e"])])
def test_a_reranker_takes_a_query_without_words_and_one_of_a_million(query, found, tmp_path):
    pytest.importorskip("bm25s", reason="the first stage of reranking needs bm25s: the extra retrieval")
    write(tmp_path, [*FILMS, {"_id": "h", "text": ""}], [*ASKED, {"_id": "s", "text": query}], [*RIGHT, "s\th\t1"])
    task = load_task("reranking", tmp_path)
    assert [query["candidates"] for query in task.test] == [["d"], ["e"], found]
    start = time.process_time()
    result = measure(tiny_taskmodel("bert", task.spec), task, split="test")
    assert time.process_time() - start < 2
    assert [answer["ranking"] for answer in result.kept.answers] == [["d"], ["e"], found]


def test_documents_without_words_have_no_candidates(tmp_path):
    pytest.importorskip("bm25s", reason="the first stage of reranking needs bm25s: the extra retrieval")
    write(tmp_path, [{"_id": "d", "text": "?"}, {"_id": "e", "text": "!"}], ASKED, RIGHT)
    assert [query["candidates"] for query in load_task("reranking", tmp_path).test] == [[], []]


def test_the_task_says_how_many_documents_that_are_not_relevant_are_learned_from(tmp_path):
    pytest.importorskip("bm25s", reason="the first stage of reranking needs bm25s: the extra retrieval")
    films = [{"_id": f"d{i}", "text": f"film number {i}"} for i in range(8)]
    write(tmp_path, films, [{"_id": "q", "text": "which film?"}], ["q\td3\t1"])
    (tmp_path / "qrels" / "test.tsv").rename(tmp_path / "qrels" / "train.tsv")
    for given, expected in (({}, 4), ({"negatives": 6}, 6), ({"negatives": 100}, 7)):
        task = load_task("reranking", tmp_path, **given)
        assert [pair["label"] for pair in task.train] == [1.0] + [0.0] * expected
    with pytest.raises(UserError, match="negatives: classification searches no documents; leave it out"):
        load_task("classification", [{"text": "a", "label": "b"}], negatives=3)
    with pytest.raises(UserError, match="negatives: got 0"):
        load_task("reranking", tmp_path, negatives=0)


def test_ids_that_do_not_match_are_counted_and_named(tmp_path):
    found = refused(tmp_path, qrels=[*RIGHT, "q\tx\t1", "q\ty\t1", "z\td\t1"])
    assert found == (
        f"{tmp_path / 'qrels' / 'test.tsv'}: 1 line with an id that queries.jsonl lacks, such as 'z'",
        f"{tmp_path / 'qrels' / 'test.tsv'}: 2 lines with an id that corpus.jsonl lacks, such as 'x', 'y'",
    )


def test_a_number_is_the_id_that_judgements_write(tmp_path):
    write(tmp_path, [{"_id": 7, "text": "a film"}], [{"_id": 1, "text": "which?"}], ["1\t7\t1"])
    (query,) = load_task("retrieval", tmp_path).test
    assert (query["id"], query["relevant"]) == ("1", {"7": 1})


def test_a_query_without_judgements_is_left_out_and_counted(tmp_path, caplog):
    queries = [*ASKED, {"_id": "s", "text": "nobody judged this"}, {"_id": "t", "text": "nothing is right for this"}]
    task, said = counted(tmp_path, caplog, queries=queries, qrels=[*RIGHT, "t\td\t0"])
    assert [query["id"] for query in task.test] == ["q", "r"]
    assert f"{tmp_path / 'queries.jsonl'}: queries without a relevant document, left out: 2" in said


def test_copies_are_kept_and_counted(tmp_path, caplog):
    corpus = [*FILMS, {"_id": "f", "text": "a warm film"}, {"_id": "g", "title": "a warm", "text": "film"}]
    queries = [*ASKED, {"_id": "s", "text": "which is warm?"}]
    task, said = counted(tmp_path, caplog, corpus=corpus, queries=queries, qrels=[*RIGHT, "s\tf\t1"])
    assert len(task.test[0]["corpus"].texts) == 4
    assert f"{tmp_path / 'corpus.jsonl'}: documents that are copies of another one: 2" in said
    assert f"{tmp_path / 'queries.jsonl'}: queries that are copies of another one: 1" in said


def test_ids_and_judgements_that_stand_twice(tmp_path):
    found = refused(tmp_path, corpus=[*FILMS, FILMS[0]], qrels=[*RIGHT, RIGHT[0], "q\td\t2"])
    assert found == (
        f"{tmp_path / 'corpus.jsonl'}: 1 id given twice, such as 'd'; every id must be another one",
        f"{tmp_path / 'qrels' / 'test.tsv'}:5: says 2 of q and d, a line before it 1",
    )


def test_a_document_of_a_million_words_costs_no_more_than_its_beginning(tmp_path, caplog):
    huge = "a long film about nothing " * 200_000
    task, said = counted(tmp_path, caplog, corpus=[*FILMS, {"_id": "h", "text": huge}])
    assert said[0].endswith("3 documents, 2 queries")
    model = tiny_taskmodel("bert", task.spec)
    start = time.process_time()
    result = measure(model, task, split="test")
    assert time.process_time() - start < 2
    assert result.examples == 2
    assert all(len(answer["ranking"]) == 3 for answer in result.kept.answers)


@pytest.mark.parametrize(("given", "tokens", "count"), [({}, 512, 1), ({"max_length": 32}, 32, 2)])
def test_documents_that_are_cut_are_counted_in_one_line(tmp_path, caplog, given, tokens, count):
    corpus = [*FILMS, {"_id": "h", "text": "long " * 200}, {"_id": "i", "text": "longer " * 10_000}]
    write(tmp_path, corpus, ASKED, RIGHT)
    with caplog.at_level(logging.WARNING, logger="eval.data.beir"):
        load_task("retrieval", tmp_path, **given)
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}: {count} of 4 documents have more than {20 * tokens:,} characters, longer than the {tokens} "
        "tokens that are read (max_length); the rest of each is truncated"
    ]


def test_an_empty_document_is_counted_and_ranked(tmp_path, caplog):
    task, said = counted(tmp_path, caplog, corpus=[*FILMS, {"_id": "h", "text": ""}])
    assert f"{tmp_path / 'corpus.jsonl'}: 1 documents have no text, such as 'h'" in said
    result = measure(tiny_taskmodel("bert", task.spec), task, split="test")
    assert 0 <= result.scores["ndcg@10"] <= 1


def test_the_command_tells_it_without_a_traceback(tmp_path, capsys):
    write(tmp_path, [], ASKED, RIGHT)
    recipe = tmp_path / "recipe.yaml"
    text = f"teacher: {{model: {tmp_path}}}\ntask: {{kind: retrieval, data: {tmp_path}}}\nexport: [onnx]\n"
    recipe.write_text(text, encoding="utf-8")
    assert main(["check", str(recipe)]) == 2
    told = capsys.readouterr().err
    assert "corpus.jsonl: is empty; put one JSON object with '_id' and 'text' a line into it" in told
    assert "Traceback" not in told


def test_a_heading_stands_before_a_document_and_not_before_a_query(tmp_path):
    corpus = [{**FILMS[0], "title": "Films"}, FILMS[1]]
    queries = [{**ASKED[0], "title": "Questions"}, ASKED[1]]
    write(tmp_path, corpus, queries, RIGHT)
    (query, _) = load_task("retrieval", tmp_path).splits["test"]
    assert query["text"] == "which is warm?"
    assert query["corpus"].text_of("d") == "Films a warm film"


def test_a_copy_of_a_relevant_document_is_no_negative_and_no_text_is_one_twice(tmp_path):
    pytest.importorskip("bm25s")
    others = [("c", "a warm film"), ("e", "a dull warm film"), ("f", "a dull warm film")]
    corpus = [FILMS[0], *({"_id": name, "text": text} for name, text in others)]
    write(tmp_path, corpus, ASKED[:1], RIGHT[:1])
    (tmp_path / "qrels" / "test.tsv").rename(tmp_path / "qrels" / "train.tsv")
    for kind in ("reranking", "retrieval"):
        task = load_task(kind, tmp_path)
        pairs = task.train if kind == "reranking" else kind_of(kind).query_pairs(task.spec, task.train)
        found = [(pair["text_b"], pair["label"]) for pair in pairs]
        assert found == [("a warm film", 1.0), ("a dull warm film", 0.0)]


@pytest.mark.parametrize("kind", ["retrieval", "reranking"])
def test_test_queries_that_were_learned_from_are_found(kind, tmp_path):
    pytest.importorskip("bm25s")
    copy = {"_id": "s", "text": ASKED[1]["text"]}
    write(tmp_path, FILMS, [*ASKED, copy], RIGHT)
    lines = ["query-id\tcorpus-id\tscore", "q\td\t1", "s\te\t1"]
    (tmp_path / "qrels" / "train.tsv").write_text("\n".join(lines) + "\n")
    task = load_task(kind, tmp_path)
    assert overlap_of(kind, task.splits["test"], task.train) == (0, 1)
    others = [example for example in task.train if "which is warm?" not in example.values()]
    assert overlap_of(kind, task.splits["test"], others) == (1,)
