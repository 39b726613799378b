"""An embedder as the first stage of a reranking task: which documents it finds, how it is refused, what is reported."""

import json
import shutil

import pytest

from compress.artifact.artifact import Artifact
from compress.cli import main
from compress.export.embedder import open_embedder
from compress.export.folder import export
from eval import UserError, load_task
from eval.inference import completed, predict
from eval.task import TaskSpec
from teachers.taskmodel import save_taskmodel
from tests.recipes.test_recipes import write_data
from tests.tiny import tiny_spec, tiny_task, tiny_taskmodel


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Documents and queries, and models of three kinds."""
    made = tmp_path_factory.mktemp("first-stage")
    write_data(tiny_task("retrieval", examples=8), made / "data")
    for name, kind in (("embedder", "embedding"), ("reranker", "reranking")):
        (made / name).mkdir()
        save_taskmodel(tiny_taskmodel("bert", tiny_spec(kind)), made / name)
    model = Artifact.from_model(tiny_taskmodel("bert", tiny_spec("embedding")))
    model.save(made / "artifact")
    export(model, made / "export", "onnx", agreement=0.0)
    shutil.copytree(made / "embedder", made / "sentence-transformers")
    (made / "sentence-transformers" / "task.json").unlink()
    assert (made / "sentence-transformers" / "modules.json").is_file()
    return made


def found(folder, name, **more):
    first_stage = {"first_stage": str(folder / name), "embedder": open_embedder}
    return load_task("reranking", folder / "data", **first_stage, **more)


@pytest.mark.parametrize("name", ["embedder", "artifact", "export", "sentence-transformers"])
def test_the_candidates_are_what_the_embedder_finds_by_exact_search(folder, name):
    task = found(folder, name)
    queries = load_task("retrieval", folder / "data").test
    model = open_embedder(str(folder / name))
    wanted = completed(model, queries, predict(model, queries)).answers
    assert [query["candidates"] for query in task.test] == [answer["ranking"] for answer in wanted]
    assert task.spec.first_stage == str(folder / name)
    assert json.loads(task.spec.model_dump_json())["first_stage"] == str(folder / name)


def test_training_pairs_are_the_relevant_documents_and_the_nearest_others(folder):
    task = found(folder, "embedder", negatives=3)
    (query,) = [one for one in load_task("retrieval", folder / "data").train if one.get("id") == "train-0"]
    model = open_embedder(str(folder / "embedder"))
    (answer,) = completed(model, [query], predict(model, [query])).answers
    nearest = [name for name in answer["ranking"] if name not in query["relevant"]][:3]
    own = [pair["text_b"] for pair in task.train if pair["group"] == "train-0"]
    assert own == [query["corpus"].text_of(name) for name in (*query["relevant"], *nearest)]


def test_tasks_with_bm25_are_written_as_before():
    assert "first_stage" not in TaskSpec(kind="reranking", metric="ndcg@10").model_dump(mode="json")


def test_what_cannot_find_documents_is_refused_with_what_to_do(folder):
    with pytest.raises(UserError, match=r"first_stage: there is no folder .*none; name that of an embedder"):
        found(folder, "none")
    with pytest.raises(UserError, match=r"first_stage: .*reranker: is a model for reranking, which gives no vectors"):
        found(folder, "reranker")
    with pytest.raises(UserError, match=r"first_stage: .*data: no config.json here"):
        found(folder, "data")
    with pytest.raises(UserError, match=r"embedder=compress\.export\.embedder\.open_embedder"):
        load_task("reranking", folder / "data", first_stage=str(folder / "embedder"))
    with pytest.raises(UserError, match="first_stage: retrieval sorts no documents of a first stage; leave it out"):
        load_task("retrieval", folder / "data", first_stage="bm25")


def test_check_tells_it_and_eval_takes_another_first_stage(folder, tmp_path, capsys):
    recipe = tmp_path / "recipe.yaml"
    task = f"{{kind: reranking, data: {folder / 'data'}, first_stage: {folder / 'none'}}}"
    recipe.write_text(f"task: {task}\nteacher: {{model: {folder / 'reranker'}}}\nexport: [onnx]\n", encoding="utf-8")
    assert main(["check", str(recipe)]) == 2
    assert f"first_stage: there is no folder {folder / 'none'}; name that of an embedder" in capsys.readouterr().err
    recipe.write_text(recipe.read_text(encoding="utf-8").replace("none}", "embedder}"), encoding="utf-8")
    assert main(["check", str(recipe)]) == 0
    asked = ["--data", str(folder / "data"), "--no-latency", "--json", "-", "--first-stage", str(folder / "export")]
    capsys.readouterr()
    assert main(["eval", str(folder / "reranker"), *asked]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert result["task"]["first_stage"] == str(folder / "export")
