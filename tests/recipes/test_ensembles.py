"""Recipes with several teachers: models that are there, and seeds of one base."""

import json

import pytest

from compress.artifact.artifact import load
from compress.cli import main
from compress.engine.cost_plan import make_plan
from compress.engine.pipeline import run_recipe
from compress.engine.preparation import prepare
from compress.recipe import parse_recipe, recipe_to_yaml
from compress.recipe.blocks import FinetuneBlock, TeacherBlock
from eval.errors import UserError
from teachers.signals.ensemble_teacher import EnsembleTeacher
from teachers.taskmodel import load_taskmodel, save_taskmodel
from tests.recipes.test_recipes import write_data
from tests.tiny import tiny_task, tiny_taskmodel


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Return a folder with data and two trained models of different families."""
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))
    task = tiny_task("classification")
    write_data(task, tmp_path / "data")
    for name, family in (("first", "bert"), ("second", "roberta")):
        (tmp_path / name).mkdir()
        save_taskmodel(tiny_taskmodel(family, task.spec), tmp_path / name)
    return tmp_path


def recipe(place, teacher, step="distill.ensemble"):
    return parse_recipe(
        f"name: small\ntask: {{kind: classification, data: {place / 'data'}, max_length: 32}}\n"
        f"teacher: {teacher}\n"
        "student: {from: teacher, layers: [0, 2]}\n"
        f"steps:\n  - {step}: {{max_steps: 2, batch_size: 8}}\n"
        "evaluate: {latency: null}\n"
    )


def test_two_models_teach_and_are_the_reference(place):
    wanted = recipe(place, f"{{model: [{place / 'first'}, {place / 'second'}]}}")
    assert parse_recipe(recipe_to_yaml(wanted)) == wanted
    found = run_recipe(wanted, place / "out")
    reference, student = found.results
    assert (reference.name, student.name) == ("teacher", "small")
    models = [load_taskmodel(place / name) for name in ("first", "second")]
    assert reference.size.parameters == sum(model.size().parameters for model in models)
    ensemble = EnsembleTeacher.of(models)
    task = wanted.task.load(wanted.seed)
    assert [answer["label"] for answer in reference.kept.answers] == [
        answer["label"] for answer in ensemble.answers(task.test)
    ]
    assert student.comparison.reference == "teacher"
    assert load(place / "out" / "model").model.config.model_type == "bert", "shape and tokenizer are the first one's"


def test_seeds_of_one_base_are_trained_once_each(place):
    wanted = recipe(place, f"{{model: {place / 'first'}, finetune: {{max_steps: 1, seed: [1, 2]}}}}")
    assert parse_recipe(recipe_to_yaml(wanted)) == wanted
    prepared = prepare(wanted)
    assert [teacher.name for teacher in prepared.teachers] == ["teacher 1", "teacher 2"]
    assert len({teacher.digest for teacher in prepared.teachers}) == 2
    folders = set((place / "home" / "teachers").iterdir())
    assert len(folders) == 2
    single = recipe(place, f"{{model: {place / 'first'}, finetune: {{max_steps: 1, seed: 2}}}}")
    assert prepare(single).teachers[0].digest == prepared.teachers[1].digest
    assert set((place / "home" / "teachers").iterdir()) == folders, "the seed was trained already"


def test_every_base_is_trained_with_every_seed():
    block = TeacherBlock(model=("a", "b"), finetune=FinetuneBlock(seed=(1, 2)))
    assert block.members(13) == (("a", 1), ("a", 2), ("b", 1), ("b", 2))
    assert TeacherBlock(model=("a", "b")).members(13) == (("a", 13), ("b", 13))
    assert TeacherBlock(model="a", finetune=FinetuneBlock(seed=5)).members(13) == (("a", 5),)


def test_a_plan_counts_every_member(place):
    wanted = recipe(place, f"{{model: {place / 'first'}, finetune: {{max_steps: 1, seed: [1, 2, 3]}}}}")
    plan = make_plan(wanted)
    assert [row.name for row in plan.sizes] == ["teacher 1", "teacher 2", "teacher 3", "student"]
    assert [row.name for row in plan.steps if row.name.endswith("finetune")] == [
        "teacher 1.finetune",
        "teacher 2.finetune",
        "teacher 3.finetune",
    ]
    assert not (place / "home" / "teachers").exists(), "a plan trains nothing"


def test_what_needs_more_than_logits_is_refused_before_any_training(place):
    wanted = recipe(place, f"{{model: {place / 'first'}, finetune: {{max_steps: 1, seed: [1, 2]}}}}", "distill.pkd")
    with pytest.raises(UserError, match=r"step 1, distill\.pkd: an ensemble of 2 teachers has no layers of its own"):
        make_plan(wanted)
    assert not (place / "home" / "teachers").exists()


def test_bad_seeds_are_named(place):
    for seed in ("[]", "[1, -2]", "x"):
        with pytest.raises(UserError, match=r"teacher: finetune\.seed"):
            recipe(place, f"{{model: {place / 'first'}, finetune: {{seed: {seed}}}}}")


def test_teach_keeps_every_member(place, capsys):
    file = place / "recipe.yaml"
    wanted = recipe(place, f"{{model: {place / 'first'}, finetune: {{max_steps: 1, seed: [1, 2]}}}}")
    file.write_text(recipe_to_yaml(wanted), encoding="utf-8")
    assert main(["teach", "--recipe", str(file), "--out", str(place / "kept")]) == 0
    assert capsys.readouterr().out == f"teacher: {place / 'kept' / '1'}\nteacher: {place / 'kept' / '2'}\n"
    assert len({load(place / "kept" / number).digest for number in "12"}) == 2
    spec = json.loads((place / "kept" / "1" / "task.json").read_text(encoding="utf-8"))
    assert spec["labels"] == ["bad", "good"]
