"""Tiny runs that rank documents, from a folder of BEIR to the certificate: an embedder, and a cross-encoder."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.archive import Archive, Run
from compress import certify, recheck
from compress.cli import main
from compress.engine.model_memory import peak_of
from compress.engine.preflight import result_name
from compress.export import Runtime
from eval import load_task
from eval.certificate.contents import Contents
from eval.certificate.findings import Word
from eval.cost.memory import PeakMemory
from eval.errors import UserError
from eval.measurement import pair
from eval.ranking.vector_index import IndexForm
from eval.result import Result
from teachers.taskmodel import save_taskmodel
from tests.recipes.test_recipes import write_data
from tests.tiny import tiny_spec, tiny_task, tiny_taskmodel

RECIPE = """\
name: ranks
seed: 13
task: {{kind: {kind}, data: {data}, max_length: 32}}
teacher: {{model: {model}}}
student: {{from: teacher, layers: [0, 1]}}
training: {{max_steps: 2, learning_rate: 1.0e-3, batch_size: 8}}
steps:
  - {step}
export:
  - onnx: {{int8: true, agreement: 0.0}}
evaluate: {{against: teacher, split: test, margin: 0.05, {index}latency: null}}
"""
INDEX = {
    "retrieval": "index: [{vectors: int8}, {vectors: binary, dimensions: 16, rescore: int8, candidates: 5}], ",
    "reranking": "",
}
STEPS = {"retrieval": "distill.embedding", "reranking": "distill.logits: {alpha: 0.9}"}


@pytest.fixture(scope="module", params=STEPS)
def scene(request, tmp_path_factory):
    """A run with data and teacher beside it."""
    if request.param == "reranking":
        pytest.importorskip("bm25s", reason="the first stage of reranking needs bm25s: the extra retrieval")
    folder = tmp_path_factory.mktemp(request.param)
    write_data(tiny_task("retrieval", examples=20), folder / "data")
    (folder / "teacher").mkdir()
    save_taskmodel(tiny_taskmodel("bert", tiny_spec(request.param), num_hidden_layers=3), folder / "teacher")
    own = {"kind": request.param, "step": STEPS[request.param], "index": INDEX[request.param]}
    recipe = RECIPE.format(**own, data=folder / "data", model=folder / "teacher")
    (folder / "recipe.yaml").write_text(recipe, encoding="utf-8")
    assert main(["run", str(folder / "recipe.yaml"), "--out", str(folder / "run")]) == 0
    shutil.copy(folder / "run" / "looks.json", folder)  # before other tests look again
    return folder, request.param


def test_every_model_is_measured_by_its_rankings(scene):
    folder, _ = scene
    figures = {result["name"]: result for result in json.loads((folder / "run" / "results.json").read_text())}
    assert {"ranks", "onnx", "onnx-int8", "teacher"} <= set(figures)
    for name, result in figures.items():
        assert result["examples"] == 20, name
        assert set(result["scores"]) == {"ndcg@10", "mrr@10", "recall@10", "recall@100", "map@100"}
        assert 0 < result["scores"]["ndcg@10"] <= 1
    assert figures["onnx"]["scores"] == pytest.approx(figures["ranks"]["scores"])
    assert "ndcg@10" in (folder / "run" / "report.html").read_text(encoding="utf-8")
    assert "ndcg@10" in (folder / "run" / "model" / "README.md").read_text(encoding="utf-8")


def test_a_reranker_is_told_what_its_first_stage_has(scene):
    folder, kind = scene
    page = (folder / "run" / "report.html").read_text(encoding="utf-8")
    assert ("The order of the first stage alone (bm25) has ndcg@10 " in page) == (kind == "reranking")


def test_exports_are_measured_with_the_forms_of_an_index_too(scene):
    folder, kind = scene
    figures = {result["name"]: result for result in json.loads((folder / "run" / "results.json").read_text())}
    forms = ("int8", "binary 16, 5 rescored by int8")
    wanted = {f"{model}, index {form}" for model in ("onnx", "onnx-int8") for form in forms}
    assert {name for name in figures if "index" in name} == (wanted if kind == "retrieval" else set())
    (look,) = json.loads((folder / "looks.json").read_text())
    assert len(set(look["candidates"].values())) == len(figures) - 1, "each form of an index is a candidate"
    for name in wanted & set(figures):
        assert look["candidates"][name].startswith(look["candidates"][name.partition(",")[0]] + ", index")
        row, plain = figures[name], figures[name.partition(",")[0]]
        assert row["comparison"]["reference"] == "teacher"
        assert row["file_bytes"] == plain["file_bytes"]
        assert (row["index"]["width"], plain.get("index")) == (32, None), "only a form of its own has other bytes"
        others = [Result.load(folder / "run" / "results" / result_name(part)) for part in (name, plain["name"])]
        assert pair(*others).metric == "ndcg@10", "query by query, against the float index of the same model"


def test_a_form_with_more_dimensions_than_there_are_is_refused_before_the_run(scene, tmp_path, capsys):
    folder, kind = scene
    text = (folder / "recipe.yaml").read_text(encoding="utf-8")
    (tmp_path / "recipe.yaml").write_text(text.replace("dimensions: 16", "dimensions: 999"), encoding="utf-8")
    assert main(["check", str(tmp_path / "recipe.yaml")]) == (2 if kind == "retrieval" else 0)
    if kind == "retrieval":
        assert "evaluate.index: dimensions: 999 is more than vectors have here, 32" in capsys.readouterr().err


def test_kept_rankings_give_the_score_again(scene):
    folder, kind = scene
    result = Result.load(folder / "run" / "results" / "onnx-int8")
    queries = load_task(kind, folder / "data").test
    assert len(result.kept.values) == len(queries)
    assert np.mean(result.kept.values) == pytest.approx(result.scores["ndcg@10"])


def test_a_record_of_a_study_gives_the_rankings_again(scene, tmp_path):
    folder, _ = scene
    student, reference = (Result.load(folder / "run" / "results" / name) for name in ("onnx-int8", "teacher"))
    archive = Archive(tmp_path)
    archive.save("ranks", "row", 13, Run("digest", student=student, reference=reference, made={"commit": ""}))
    known = archive.load("ranks")["row"][13]
    assert known.student.kept.values == pytest.approx(student.kept.values)
    again, before = (pair(*sides).difference for sides in ((known.student, known.reference), (student, reference)))
    assert (again.value, again.low) == pytest.approx((before.value, before.low))


@pytest.mark.parametrize("model", ["onnx-int8", pytest.param("model", marks=pytest.mark.slow)])
def test_a_model_of_the_run_is_evaluated(scene, capsys, model):
    folder, _ = scene
    capsys.readouterr()
    run = folder / "run"
    asked = ["--data", str(folder / "data"), "--split", "test", "--no-latency", "--json", "-"]
    assert main(["eval", str(run / model), *asked]) == 0
    scores = json.loads(capsys.readouterr().out)[0]["scores"]
    assert scores == pytest.approx(Result.load(run / "results" / ("ranks" if model == "model" else model)).scores)


def test_another_process_answers_queries_for_its_memory(scene):
    """It reads what a query is to a model: its text, or the pair with its first document."""
    folder, kind = scene
    found = peak_of(Runtime(folder / "run" / "onnx"), load_task(kind, folder / "data").test)
    assert isinstance(found, PeakMemory), found


def test_forms_of_an_index_are_evaluated_by_command(scene, capsys):
    folder, kind = scene
    capsys.readouterr()
    asked = ["eval", str(folder / "run" / "onnx"), "--data", str(folder / "data"), "--split", "test", "--no-latency"]
    forms = ["--index", "int8", "--index", "vectors: binary, dimensions: 16, rescore: int8, candidates: 5"]
    code = main([*asked, *forms, "--json", "-"])
    told = capsys.readouterr()
    if kind != "retrieval":
        assert code == 2
        assert f"--index: a {kind} task searches no vectors; leave it out" in told.err
        return
    assert code == 0, told.err
    for row in json.loads(told.out):
        name = row["name"]
        assert row["scores"] == pytest.approx(Result.load(folder / "run" / "results" / result_name(name)).scores), name
    assert main([*asked, "--index", "int7", "--index", "vectors: int8, rescor: int8"]) == 2
    told = capsys.readouterr().err
    assert "--index: vectors: got 'int7', must be one of 'float32', 'int8', 'binary'" in told
    assert "--index: unknown field 'rescor'; did you mean 'rescore'?" in told


def test_the_run_is_certified_and_rechecked(scene, tmp_path):
    folder, _ = scene
    done = certify(folder / "run", tmp_path / "model.cert", model="onnx-int8")
    assert "20 test examples: ndcg@10" in done.sentence
    found = recheck(
        done.file,
        model=folder / "run" / "onnx-int8",
        teacher=folder / "teacher",
        data=folder / "data",
    )
    assert [(finding.level, finding.word) for finding in found.findings] == [
        (0, Word.UNSIGNED),
        *((level, Word.VALID) for level in (1, 2, 3, 4)),
    ], str(found)
    assert main(["recheck", str(done.file), "--level", "1"]) == 0


FORMS = ("int8", "vectors: binary, dimensions: 16, rescore: int8, candidates: 5")


@pytest.mark.parametrize("form", FORMS)
def test_the_index_is_certified_and_rechecked(scene, tmp_path, capsys, form):
    folder, kind = scene
    file = tmp_path / "index.cert"
    capsys.readouterr()
    asked = ["certify", str(folder / "run"), "--out", str(file), "--model", "onnx-int8", "--index", form]
    code, told = main(asked), capsys.readouterr()
    if kind != "retrieval":
        assert code == 2
        assert f"--index: a {kind} task searches no vectors; leave it out" in told.err
        return
    assert code == 0, told.err
    contents = Contents.from_bytes(file.read_bytes())
    index, size = contents.main.index, contents.main.index_size
    taken = IndexForm(**index.plain()).bytes_of(size.documents, size.width)
    assert (size.documents, size.width, size.bytes) == (
        len(load_task(kind, folder / "data").test[0]["corpus"].texts),
        32,
        taken,
    )
    assert (
        f"20 test examples (index: {index.title}; {taken:,} bytes for {size.documents} documents): ndcg@10" in told.out
    )
    given = {"model": folder / "run" / "onnx-int8", "teacher": folder / "teacher", "data": folder / "data"}
    found = recheck(file, **given)
    assert [finding.word for finding in found.findings] == [Word.UNSIGNED, *[Word.VALID] * 4], str(found)
    tampered = (
        ({"index": None, "index_size": None}, Word.INVALID, "index: none is not that"),
        ({"index": replace(index, vectors="float32")}, Word.INVALID, "float32"),
        ({"index_size": None}, Word.INVALID, "index: its form and its size are told together or not at all"),
        ({"index_size": replace(size, bytes=1)}, Word.INVALID, f"index: has 1 bytes, its documents {taken:,}"),
        ({"index_size": index.size(1, size.width)}, Word.OTHER_DATA, f"{size.documents} documents, the index of"),
        ({"index_size": index.size(size.documents, 99)}, Word.NOT_REPRODUCED, "index: width: 32 here, 99 in"),
    )
    for values, word, says in tampered:
        file.write_bytes(replace(contents, main=replace(contents.main, **values)).to_bytes())
        found = recheck(file, **given)
        assert (found.word, says in found.reason) == (word, True), str(found)


def test_an_index_that_was_not_measured_is_not_certified(scene):
    folder, kind = scene
    if kind != "retrieval":
        return
    with pytest.raises(UserError, match=r"binary was not measured .*index: \[\{vectors: binary\}\]"):
        certify(folder / "run", folder / "none.cert", model="onnx-int8", index=IndexForm(vectors="binary"))
    with pytest.raises(UserError, match="measured for exports, not for ranks; name one of them with --model"):
        certify(folder / "run", folder / "none.cert", model="ranks", index=IndexForm(vectors="int8"))


@pytest.mark.parametrize("judged", ["train", "test"])
def test_an_embedder_is_exported_with_documents_at_hand(judged, tmp_path, capsys):
    """Judged queries choose the form, or, where these only report, texts of documents."""
    task = tiny_task("retrieval", examples=20)
    write_data(replace(task, splits={name: task.splits[name] for name in (judged, "test")}), tmp_path / "data")
    (tmp_path / "model").mkdir()
    save_taskmodel(tiny_taskmodel("bert", tiny_spec("embedding")), tmp_path / "model")
    asked = ["--int8", "--agreement", "0.5", "--data", str(tmp_path / "data"), "--out", str(tmp_path / "export")]
    assert main(["export", str(tmp_path / "model"), *asked]) == 0
    assert "'a text to predict'" in capsys.readouterr().err
    manifest = json.loads((tmp_path / "export" / "export.json").read_text(encoding="utf-8"))
    assert manifest["task"]["kind"] == "retrieval"
    assert manifest["gate"]["examples"] >= 20
    against = ["--against", str(tmp_path / "model"), "--data", str(tmp_path / "data"), "--json"]
    assert main(["verify", str(tmp_path / "export"), *against]) == 0
    *_, compared = json.loads(capsys.readouterr().out)
    assert compared["passed"]
    assert compared["rows"] > 1
