"""A run keeps the examples that report apart: what chooses never sees them, and every result says what it is worth."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest

from compress import read_recipe, run_recipe
from compress.cli import main
from compress.engine.looks import read_looks
from compress.testing.tiny import tiny_spec, tiny_task, tiny_taskmodel
from eval.data.loading import Task
from eval.data.roles import assign_roles
from teachers.finetuning.finetune import read_facts
from teachers.taskmodel import save_taskmodel
from tests.recipes.test_recipes import write_data

RECIPE = """\
name: small
task: {kind: classification, data: data, max_length: 16}
teacher: {model: base, finetune: {epochs: 2, batch_size: 32, learning_rate: 3.0e-3}}
student: {from: teacher, layers: [0]}
training: {epochs: 2, batch_size: 32, learning_rate: 3.0e-3}
steps:
  - distill.logits: {alpha: 0.9}
export:
  - onnx: {int8: true, agreement: 0.1}
evaluate: {baseline: true, latency: null}
"""


@pytest.fixture
def scene(tmp_path, monkeypatch):
    """Return the task of a folder in which the recipe can be run, with or without a test split."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))

    def made(*splits: str) -> Task:
        task = tiny_task("classification", examples=240)
        task = replace(task, splits={name: task.splits[name] for name in splits}, source="data")
        write_data(task, tmp_path / "data")
        (tmp_path / "base").mkdir()
        save_taskmodel(tiny_taskmodel("bert", tiny_spec("masked-lm"), num_hidden_layers=2), tmp_path / "base")
        (tmp_path / "recipe.yaml").write_text(RECIPE)
        return task

    return made


@pytest.mark.parametrize("splits", [("train", "validation"), ("train", "validation", "test")])
def test_what_reports_chooses_nothing(scene, tmp_path, splits):
    task = scene(*splits)
    roles = assign_roles(task)
    assert roles.report == splits[-1]
    run = run_recipe(read_recipe(tmp_path / "recipe.yaml"), tmp_path / "out")
    reported, select = task.splits[splits[-1]].digest, roles.task.select.digest
    assert {result.digest for result in run.results} == {reported}
    assert {(result.role, len(result.chosen_on)) for result in run.results} == {("final", 0)}
    assert all(result.comparison.verdict != "selection" for result in run.results if result.comparison)
    step = run.artifact.lineage[-1]
    assert (step.data["validation"], step.data["train"]) == (select, roles.task.train.digest)
    assert step.chosen_on == {"best epoch, teacher": select, "training, teacher": roles.task.train.digest}
    assert run.artifact.chosen_on["best epoch, 2. distill.logits"] == select
    manifest = json.loads((run.exports["onnx-int8"] / "export.json").read_text())
    assert manifest["chosen_on"]["export gate"] == select
    assert run.notes[0] == roles.notes[0]
    assert run.notes[-1] == f"The split {splits[-1]} was opened once, for 4 candidates."
    page = run.page.read_text()
    assert "The scores are final" in page
    assert roles.notes[0] in page


def test_the_teacher_of_a_run_is_the_one_that_teach_makes(scene, tmp_path, capsys):
    task = scene("train", "validation")
    assert main(["teach", "--recipe", "recipe.yaml"]) == 0
    assert "select 24 carved from train" in capsys.readouterr().err
    kept = list((tmp_path / "home" / "teachers").iterdir())
    run_recipe(read_recipe(tmp_path / "recipe.yaml"), tmp_path / "out")
    assert list((tmp_path / "home" / "teachers").iterdir()) == kept
    given = ["--epochs", "2", "--batch-size", "32", "--learning-rate", "3e-3"]
    assert (
        main(["teach", "--base", "base", "--task", "classification", "--data", "data", *given, "--out", "taught"]) == 0
    )
    facts = read_facts(tmp_path / "taught")
    assert facts["identity"]["validation"] == assign_roles(task).task.select.digest
    capsys.readouterr()
    assert main(["eval", "taught", "--data", "data", "--no-latency", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["role"] == "final"


def test_a_split_that_chooses_and_reports_gives_a_selection(scene, tmp_path, capsys):
    task = scene("train", "validation")
    both = ["--set", "evaluate.split=validation", "--set", "evaluate.select=validation"]
    assert main(["run", "recipe.yaml", "--out", "out", *both]) == 0
    out = capsys.readouterr().out
    assert "validation chooses and reports" in out
    assert "no verdict against teacher" in " ".join(out.split())
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert {result["role"] for result in results} == {"selection"}
    chosen = {result["name"]: result["chosen_on"] for result in results}
    assert set(chosen["teacher"].values()) == {task.validation.digest}
    assert sorted(chosen["teacher"]) == ["best epoch"]
    assert "export gate" in chosen["onnx-int8"]
    assert {result["comparison"]["verdict"] for result in results if result["comparison"]} == {"selection"}
    card = (tmp_path / "out" / "model" / "README.md").read_text()
    assert "the score is one of a selection" in card


def test_the_same_candidates_are_counted_once(scene, tmp_path):
    scene("train", "validation")
    recipe = read_recipe(tmp_path / "recipe.yaml")
    run_recipe(recipe, tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / "results")
    again = run_recipe(recipe, tmp_path / "out", resume=True)
    assert again.notes[-1] == "The split validation was opened 2 times, for 4 candidates."
    looks = read_looks(tmp_path / "out")
    assert [look.candidates for look in looks] == [looks[0].candidates] * 2
    assert sorted(looks[0].candidates) == ["no teacher", "onnx", "onnx-int8", "small"]


def test_a_baseline_that_is_trained_otherwise_is_told(scene, tmp_path):
    scene("train", "validation", "test")
    changes = ["augment.rule=tinybert", "augment.copies=1", "export=[]", "augment.model=base"]
    run = run_recipe(read_recipe(tmp_path / "recipe.yaml", changes), tmp_path / "out")
    told = [note for note in run.notes if note.startswith("no teacher differs in more than the teacher")]
    assert len(told) == 1
    assert "the training examples" in told[0]
    assert "optimizer steps" not in told[0], "it makes as many"
