"""One base with several adapters as one export: small, and each task answers as its own model."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
import torch

from compress.cli import main
from compress.export import ExportError, Runtime, TaskSet, export_adapters
from compress.export.check.verification import verify
from eval.errors import UserError
from eval.inference import predict
from teachers.adapters.adapter_block import AdapterBlock
from teachers.adapters.installing import install, merge, task_parameters
from teachers.finetuning.adapter_folder import save_adapted, with_adapter
from teachers.taskmodel import load_taskmodel, save_taskmodel
from tests.tiny import tiny_spec, tiny_task, tiny_taskmodel

TASKS = {
    "mood": ("classification", {"lora": {"rank": 2}}),
    "score": ("regression", {"lora": {"rank": 3, "parts": ["key", "attention_output"]}}),
    "topics": ("multilabel", "lora"),
    "names": ("tagging", {"houlsby": {"size": 2}}),
    "again": ("classification", {"pfeiffer": {"size": 3}}),
}
TEXTS = ("the film is good", "a very sad and boring story in oslo", "bob", "emma likes the warm room and carla not")


def teacher(base, folder, kind, block, seed):
    """Write a teacher whose adapter has random values, as if it were trained."""
    model = load_taskmodel(base, tiny_spec(kind), seed=seed)
    block = AdapterBlock.model_validate(block)
    install(model.model, block.adapter, seed)
    chance = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in task_parameters(model.model).values():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=chance))
    folder.mkdir(parents=True)
    save_adapted(replace(model, name=folder.name), block, folder)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A base whose weights are nearly all of its bytes, as a real one's are; five teachers; both exports."""
    root = tmp_path_factory.mktemp("adapters")
    (root / "base").mkdir()
    save_taskmodel(
        tiny_taskmodel("bert", tiny_spec("masked-lm"), num_hidden_layers=2, intermediate_size=4096), root / "base"
    )
    for seed, (name, (kind, block)) in enumerate(TASKS.items()):
        teacher(root / "base", root / name, kind, block, seed)
    folders = {name: root / name for name in TASKS}
    rows = {name: [*tiny_task(kind).validation][:6] for name, (kind, _) in TASKS.items()}
    how = {"fp32": {}, "int8": {"int8": True, "agreement": 0.8}}
    reports = {
        form: export_adapters(root / "base", folders, root / form, examples=rows, **more) for form, more in how.items()
    }
    return root, reports


def own_model(root, name):
    """Return the model that a task has by itself, merged if it can be."""
    return load_taskmodel(root / name)


@pytest.mark.parametrize("form", ["fp32", "int8"])
def test_five_tasks_are_at_most_1_3_times_the_bytes_of_one(made, form):
    report = made[1][form]
    assert report.bytes == (report.folder / "model.onnx").stat().st_size
    assert report.bytes <= 1.3 * report.one_bytes
    assert (report.bytes > 1e6) == (form == "fp32")
    assert set(report.gates) == set(TASKS)


def test_each_task_answers_as_its_own_merged_model(made):
    root, reports = made
    for name, (kind, _) in TASKS.items():
        model, task = own_model(root, name), tiny_task(kind)
        rows = [*task.validation][:6]
        exported = Runtime(root / "fp32" / name)
        inputs = model.encoder.collate(model.encoder.encode(rows))
        real = inputs["attention_mask"].astype(bool) if model.task.per_token else slice(None)
        wanted = model.forward(inputs)
        np.testing.assert_allclose(exported.forward(inputs)[real], wanted[real], atol=1e-5, rtol=1e-5)
        assert reports["fp32"].gates[name].agreement == 1
        found, answers = predict(Runtime(root / "int8" / name), rows).logits, predict(model, rows).logits
        scale = max(np.abs(row).max() for row in answers)
        assert max(np.abs(a - b).max() for a, b in zip(found, answers, strict=True)) < 0.1 * scale
        others = [
            own_model(root, other).forward(inputs) for other in TASKS if TASKS[other][0] == kind and other != name
        ]
        assert all(np.abs(other - wanted).max() > 1e-2 for other in others)


def test_a_batch_mixes_tasks(made):
    root, _ = made
    session = onnxruntime.InferenceSession(root / "fp32" / "model.onnx", providers=["CPUExecutionProvider"])
    assert [output.name for output in session.get_outputs()] == list(TASKS)
    encoder = own_model(root, "mood").encoder
    inputs = encoder.collate(encoder.encode([{"text": text} for text in TEXTS]))
    ids = np.array([[0], [2], [1], [0]]).repeat(inputs["input_ids"].shape[1], axis=1)
    found = dict(zip(TASKS, session.run(None, {**inputs, "task_ids": ids}), strict=True))
    for row, name in enumerate(("mood", "topics", "score", "mood")):
        wanted = own_model(root, name).forward(inputs)[row]
        np.testing.assert_allclose(found[name][row], wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("batch_size", [None, 3])
def test_all_tasks_answer_each_text_and_some_if_asked(made, batch_size):
    root, _ = made
    chosen = ("mood", "score", "topics", "again")
    found = TaskSet(root / "fp32", tasks=chosen).predict(TEXTS, batch_size)
    assert list(found) == list(chosen)
    for name in chosen:
        wanted = Runtime(root / "fp32" / name).predict(TEXTS)
        for one, other in zip(found[name].logits, wanted.logits, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5, rtol=1e-5)
        assert len(found[name].answers) == len(TEXTS)
    lines = [*TaskSet(root / "fp32", tasks=["score", "mood"]).stream(TEXTS, chunk=3)]
    assert [list(line) for line in lines] == [["score", "mood"]] * len(TEXTS)
    assert [line["mood"]["label"] for line in lines] == [answer["label"] for answer in found["mood"].answers]
    with pytest.raises(ExportError, match="has no task nothing; its tasks are mood, score"):
        TaskSet(root / "fp32", tasks=["nothing"])
    with pytest.raises(ExportError, match="is an export of one task"):
        TaskSet(root / "fp32" / "mood")
    with pytest.raises(ExportError, match=r"holds several tasks; name the folder of one: .*NAME, of mood, score"):
        Runtime(root / "fp32")


def test_commands_take_all_tasks_or_one(made, tmp_path, capsys):
    root, _ = made
    words = [word for name in ("mood", "topics") for word in ("--adapter", str(root / name))]
    assert main(["export", str(root / "base"), "--out", str(tmp_path / "two"), *words]) == 0, capsys.readouterr().err
    assert "2 tasks" in capsys.readouterr().out
    assert main(["export", str(root / "base"), "--out", str(tmp_path / "two"), *words, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["folder"], figures["scheme"]) == (str(tmp_path / "two"), "fp32")
    assert {name: gate["passed"] for name, gate in figures["gates"].items()} == {"mood": True, "topics": True}
    assert main(["predict", str(tmp_path / "two"), TEXTS[0]]) == 0
    by_command = json.loads(capsys.readouterr().out)
    assert set(by_command) == {"mood", "topics"}
    assert main(["predict", str(tmp_path / "two" / "mood"), TEXTS[0]]) == 0
    assert json.loads(capsys.readouterr().out) == by_command["mood"]
    program = [sys.executable, str(tmp_path / "two" / "predict.py"), TEXTS[0]]
    run = subprocess.run(program, capture_output=True, check=True, cwd=tmp_path)
    assert json.loads(run.stdout) == by_command
    assert [each.passed for each in verify(tmp_path / "two" / "topics") if each.ran] == [True, True]
    (tmp_path / "two" / "tokenizer.json").write_text("{}")
    with pytest.raises(ExportError, match=r"tokenizer.json has 2 bytes instead of"):
        Runtime(tmp_path / "two" / "mood")


def test_what_cannot_be_one_export_is_refused_with_every_reason(made, tmp_path, capsys):
    root, _ = made
    words = ["export", str(root / "base"), "--out", str(tmp_path / "out"), "--adapter", str(root / "mood")]
    assert main(words) == 2
    assert "give those of two tasks or more" in capsys.readouterr().err
    assert main([*words, "--adapter", str(tmp_path / "mood"), "--to", "web", "--accept-incomplete"]) == 2
    said = capsys.readouterr().err
    assert "is for one graph in ONNX; leave --to and --accept-incomplete out" in said
    assert "two folders have one name" in said
    with pytest.raises(UserError, match="holds no adapter") as raised:
        export_adapters(root / "base", {"a b": root / "base", "mood": root / "mood"}, tmp_path / "out")
    assert any("'a b' cannot name a task" in problem for problem in raised.value.problems)
    assert not (tmp_path / "out").exists()


def test_tasks_over_two_bases_are_not_one_graph(made):
    from compress.onnx_graph.tasks_graph import several_tasks_graph

    root, _ = made
    models = {name: with_adapter(root / "base", root / name) for name in ("mood", "topics")}
    with torch.no_grad():
        models["topics"].model.bert.encoder.layer[1].intermediate.dense.bias.add_(1)
    with pytest.raises(UserError, match=r"topics: is not over the same base as mood: encoder.layer.1.intermediate"):
        several_tasks_graph(models, None)
    assert merge(models["mood"].model)
    assert not merge(with_adapter(root / "base", root / "names").model)
