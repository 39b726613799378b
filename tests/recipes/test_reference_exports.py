"""A recipe measures the teacher's own exports beside what it makes, and the memory of each model."""

import json

import pytest

from compress.engine import model_memory
from compress.engine.pipeline import run_recipe
from compress.engine.reference_exports import reference_exports
from compress.recipe import parse_recipe
from eval.cost.memory import PeakMemory
from eval.errors import UserError
from eval.result import Result
from teachers.signals.ensemble_teacher import EnsembleTeacher
from teachers.taskmodel import save_taskmodel
from tests.recipes.test_recipes import write_data
from tests.tiny import tiny_task, tiny_taskmodel

RECIPE = """\
name: small
task: {kind: classification, data: data, max_length: 16}
teacher: {model: teacher}
student: {from: teacher, layers: [0]}
steps: [{prune.vocabulary: {}}]
export: [{onnx: {int8: true, agreement: 0.0}}]
evaluate: {latency: {batch: [1], seconds: 0.005}}
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    task = tiny_task("classification", examples=8)
    write_data(task, tmp_path / "data")
    (tmp_path / "teacher").mkdir()
    save_taskmodel(tiny_taskmodel("bert", task.spec), tmp_path / "teacher")
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_teachers_own_exports_are_measured_and_named(place, monkeypatch):
    asked = []
    monkeypatch.setattr(model_memory, "peak_of", lambda model, examples: asked.append(model.name) or PeakMemory(9, 4))
    (place / "recipe.yaml").write_text(RECIPE)
    run = run_recipe(place / "recipe.yaml", place / "out")
    results = {result.name: result for result in run.results}
    assert list(results) == ["teacher", "small", "onnx", "onnx-int8", "teacher, onnx", "teacher, onnx-int8"]
    assert sorted(asked) == sorted(results)
    export = results["onnx-int8"]
    assert {row.name for row in export.latency} == {"onnx-int8", "teacher", "teacher, onnx-int8"}
    assert [row.engine for row in export.latency] == ["eager torch", "onnx int8", "onnx int8"]
    assert {row.threads for row in export.latency} == {1}
    assert export.speed_over("teacher, onnx-int8").rounds == export.row().rounds
    assert results["teacher, onnx-int8"].bytes > export.bytes
    assert results["teacher, onnx"].score == results["teacher"].score
    assert (results["small"].same_engine, results["teacher, onnx"].same_engine) == (None, None)
    page = run.page.read_text("utf-8")
    assert "over teacher, onnx-int8 (onnx int8)" in page
    loaded = Result.load(place / "out" / "results" / "onnx-int8")
    assert (loaded.same_engine, loaded.memory) == ("teacher, onnx-int8", PeakMemory(9, 4))

    def never(*_, **__):
        raise AssertionError("exported again")

    monkeypatch.setattr("compress.export.folder.export", never)
    again = parse_recipe(RECIPE.replace("batch: [1]", "batch: [2]"))
    assert len(run_recipe(again, place / "out", resume=True).results) == 6


def test_they_can_be_switched_off_and_are_left_out_without_latency(place, monkeypatch):
    monkeypatch.setattr(model_memory, "peak_of", lambda *_: pytest.fail("memory was measured"))
    off = RECIPE.replace("{latency", "{reference_exports: false, memory: false, latency")
    assert [result.name for result in run_recipe(parse_recipe(off), "off").results][2:] == ["onnx", "onnx-int8"]
    without = RECIPE.replace("{batch: [1], seconds: 0.005}", "null")
    results = run_recipe(parse_recipe(without), "without").results
    assert len(results) == 4
    assert {result.memory for result in results} == {None}
    assert not (place / "home" / "reference-exports").exists()


def test_what_cannot_be_exported_is_said(place):
    teacher = tiny_taskmodel("bert", tiny_task("classification").spec)
    ensemble = EnsembleTeacher.of((teacher, teacher))
    assert reference_exports(ensemble, ()).notes == ("teacher is no single network, so it has no export of its own.",)
    found = reference_exports(teacher, ("web-int8", "nosuch"))
    assert list(found.models)[:2] == ["onnx", "onnx-int8"]
    assert "own nosuch export: --to: unknown target 'nosuch'" in found.notes[-1]
    assert reference_exports(None, ("onnx",)).models == {}


def test_a_recipe_by_the_name_of_such_an_export_is_refused(place):
    named = RECIPE.replace("name: small", "name: teacher-onnx-int8")
    with pytest.raises(UserError, match=r"is what results call another model .*teacher, onnx-int8"):
        run_recipe(parse_recipe(named), place / "out")


def test_memory_is_that_of_a_new_process(place):
    examples = [json.loads(line) for line in (place / "data" / "validation.jsonl").read_text("utf-8").splitlines()]
    teacher = tiny_taskmodel("bert", tiny_task("classification").spec)
    assert model_memory.peak_of(teacher, examples) == model_memory.NO_FOLDER
    export = reference_exports(teacher, ()).models["onnx"]
    found = model_memory.peak_of(export, examples)
    assert 20_000_000 < found.bytes < 150_000_000  # no torch in it
    assert 0 < found.rise_bytes < 60_000_000
    (export.folder / "tokenizer.json").unlink()
    assert "peak_memory: the measured code ended with 1" in model_memory.peak_of(export, examples)
