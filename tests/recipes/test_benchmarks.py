"""The scripts behind the figures in the docs still run; what they measure means nothing at this size."""

import sys

import pytest

from benchmarks import against_teacher, distillation_step, multitask, tinybert_step
from compress.artifact.artifact import Artifact
from compress.export import export_onnx
from eval.cost.memory import PeakMemory
from teachers.taskmodel import save_taskmodel
from tests.recipes.test_recipes import write_data
from tests.tiny import tiny_task, tiny_taskmodel


@pytest.fixture
def small(tmp_path, monkeypatch):
    task = tiny_task("classification")
    write_data(task, tmp_path / "data" / "sst2")
    (tmp_path / "base").mkdir()
    save_taskmodel(tiny_taskmodel("bert", task.spec, num_hidden_layers=6), tmp_path / "base")
    monkeypatch.setenv("COMPRESS_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("COMPRESS_BASE", str(tmp_path / "base"))
    monkeypatch.setattr(sys, "argv", ["benchmark", "--rounds", "1"])


def test_the_benchmark_of_a_step_runs(small, monkeypatch, capsys):
    monkeypatch.setattr(distillation_step, "SENTENCES", 32)
    distillation_step.main()
    printed = capsys.readouterr().out
    assert "soft targets / labels only" in printed
    assert "speed of grouped / shuffled" in printed
    assert "1 rounds of 1 batches" in printed


def test_the_benchmark_of_tinybert_runs(small, monkeypatch, capsys):
    monkeypatch.setattr(tinybert_step, "SENTENCES", 32)
    monkeypatch.setattr(tinybert_step, "peak_memory", lambda _: PeakMemory(2**20, 2**19))
    tinybert_step.main()
    assert "| of it for the training, MiB | 0 |" in capsys.readouterr().out


def test_the_benchmark_of_exports_against_their_teacher_runs(tmp_path, monkeypatch, capsys):
    task = tiny_task("classification")
    write_data(task, tmp_path / "data")
    model = Artifact.from_model(tiny_taskmodel("bert", task.spec))
    model.save(tmp_path / "teacher")
    export_onnx(model, tmp_path / "export", int8=False, examples=task.validation, name="the same in ONNX")
    given = [str(tmp_path / "teacher"), str(tmp_path / "export"), "--data", str(tmp_path / "data")]
    monkeypatch.setattr(sys, "argv", ["benchmark", *given, "--seconds", "0.01", "--threads", "1"])
    against_teacher.main()
    teacher, export = capsys.readouterr().out.splitlines()[2:4]
    assert teacher.split(" | ")[1] == against_teacher.TEACHER
    assert export.split(" | ")[1] == "the same in ONNX"
    assert export.split(" | ")[4] == "100.0%"


@pytest.mark.slow
def test_the_benchmark_of_several_tasks_runs(tmp_path, monkeypatch, capsys):
    kinds = {"cola": "classification", "mrpc": "classification", "rte": "classification", "stsb_en": "regression"}
    for name, kind in kinds.items():
        write_data(tiny_task(kind, pair=name != "cola"), tmp_path / "data" / name)
    base = tiny_taskmodel("bert")
    base.model.bert.save_pretrained(tmp_path / "base")
    base.tokenizer.save_pretrained(tmp_path / "base")
    monkeypatch.setenv("COMPRESS_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("COMPRESS_BASE", str(tmp_path / "base"))
    monkeypatch.setattr(sys, "argv", ["benchmark", "--seeds", "1", "2", "--limit", "8"])
    multitask.main()
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "| training | cola | mrpc | rte | stsb |"
    assert [line.split(" | ")[0] for line in printed[2:]] == [f"| {way}" for way in multitask.WAYS]
    assert printed[2].count("(2)") == 4
