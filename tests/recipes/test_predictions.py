"""Recipes whose teacher is a file of predictions."""

import json

import pytest

from compress.cli import main
from compress.engine.cost_plan import make_plan
from compress.engine.pipeline import run_recipe
from compress.engine.preflight import foresee
from compress.recipe import parse_recipe, recipe_to_yaml
from eval.errors import UserError
from teachers.taskmodel import save_taskmodel
from tests.recipes.test_recipes import write_data
from tests.tiny import tiny_task, tiny_taskmodel


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Return a folder with data, a base to start from, and a file of predictions in another order."""
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))
    task = tiny_task("classification")
    write_data(task, tmp_path / "data")
    (tmp_path / "base").mkdir()
    save_taskmodel(tiny_taskmodel("bert", task.spec), tmp_path / "base")
    examples = [example for split in task.splits.values() for example in split]
    write(tmp_path / "said.jsonl", reversed(examples))
    return tmp_path


def write(file, examples):
    sure = {"bad": [0.9, 0.1], "good": [0.1, 0.9]}
    rows = [{"text": one["text"], "probabilities": sure[one["label"]]} for one in examples]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def recipe(place, teacher="{predictions: said.jsonl}", step="distill.logits", more="", student="{from: base}"):
    text = (
        f"name: small\ntask: {{kind: classification, data: data, max_length: 32}}\nteacher: {teacher}\n"
        f"student: {student}\nsteps:\n  - {step}: {{max_steps: 2, batch_size: 8}}\n{more}"
    )
    for name in ("data", "base", "said.jsonl"):
        text = text.replace(f": {name}", f": {place / name}")
    return parse_recipe(text)


@pytest.mark.parametrize("step", ["distill.logits", "distill.bilstm", "distill.static"])
def test_predictions_teach_and_are_the_reference(place, step):
    wanted = recipe(place, step=step, more="evaluate: {latency: {batch: [1], seconds: 0.05}, memory: false}\n")
    assert parse_recipe(recipe_to_yaml(wanted)) == wanted
    found = run_recipe(wanted, place / "out")
    reference, student = found.results
    assert (reference.name, reference.scores["accuracy"]) == ("teacher", 1.0)
    assert student.comparison.reference == "teacher"
    assert {row.name for row in student.latency} == {"small"}, "what is not there is not timed"
    assert found.artifact.lineage[-1].teacher == foresee(wanted).prepared.predictions.digest
    assert found.page.is_file()
    again = run_recipe(wanted, place / "out", resume=True)
    assert again.results[1].created == student.created, "a resumed run measures nothing again"


def test_a_plan_needs_no_model_of_the_teacher(place):
    plan = make_plan(recipe(place, more="evaluate: {latency: null}\n"))
    assert [row.name for row in plan.sizes] == ["student"]


def test_what_a_file_cannot_give_is_told_before_anything_is_read(place):
    for wrong, words in (
        (("{predictions: said.jsonl, finetune: {epochs: 1}}",), "finetune: a file of predictions has no network"),
        (("{predictions: said.jsonl, model: base}",), "give one of model"),
    ):
        with pytest.raises(UserError, match=words):
            recipe(place, *wrong)
    with pytest.raises(UserError, match="no network to make it from"):
        recipe(place, student="{from: teacher, layers: 1}")
    with pytest.raises(UserError, match=r"augment.rule: makes new texts"):
        recipe(place, more="augment: {rule: bilstm, pos: 0}\n")


def test_a_step_that_needs_a_network_is_refused_with_its_place(place):
    with pytest.raises(UserError, match=r"step 1, distill.pkd: the teacher is a file of predictions \(said.jsonl\)"):
        foresee(recipe(place, step="distill.pkd"))


def test_a_file_that_covers_training_alone(place):
    task = tiny_task("classification")
    write(place / "said.jsonl", task.train)
    with pytest.raises(UserError, match=r"evaluate.against: said.jsonl: 40 of 40 examples of test have no prediction"):
        foresee(recipe(place, more="evaluate: {latency: null}\n"))
    found = run_recipe(recipe(place, more="evaluate: {against: none, latency: null}\n"), place / "out")
    assert [result.name for result in found.results] == ["small"]


def test_what_is_missing_is_refused_or_left_out(place):
    task = tiny_task("classification")
    write(place / "said.jsonl", task.train[:30])
    with pytest.raises(UserError, match=r"said.jsonl: \d+ of 40 examples of train have no prediction"):
        foresee(recipe(place))
    wanted = recipe(place, "{predictions: {file: said.jsonl, missing: drop}}")
    known = {one["text"] for one in task.train[:30]}
    assert {one["text"] for one in foresee(wanted).prepared.inputs.train} == known


def test_texts_without_a_label_are_answered_by_the_file(place):
    (place / "more.txt").write_text("a truly warm film\nthe dull room\n")
    more = f"augment: {{unlabelled: {place / 'more.txt'}}}\n"
    with pytest.raises(UserError, match=r"2 of 42 examples of train have no prediction, such as 'a truly warm film'"):
        foresee(recipe(place, more=more))
    with (place / "said.jsonl").open("a") as lines:
        lines.write('{"text": "a truly warm film", "label": "good"}\n{"text": "the dull room", "label": "bad"}\n')
    found = run_recipe(recipe(place, more=more), place / "out")
    assert found.artifact.lineage[-1].data["train"] != foresee(recipe(place, more=more)).prepared.inputs.train.digest


def test_a_run_against_predictions_is_not_certified(place, capsys):
    file = place / "recipe.yaml"
    file.write_text(recipe_to_yaml(recipe(place, more="evaluate: {latency: null}\n")))
    assert main(["run", str(file), "--out", str(place / "out")]) == 0
    assert main(["certify", str(place / "out"), "--out", str(place / "model.cert")]) == 2
    assert "a file of predictions cannot be run again" in capsys.readouterr().err
